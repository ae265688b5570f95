"""What everything else stands on: errors, labels, columns, random numbers, messages, files. Imports nothing of ours."""

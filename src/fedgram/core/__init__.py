"""The foundation: errors, classes, columns, random numbers, messages, files. Imports no other part of fedgram."""

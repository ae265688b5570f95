"""Methods that ask all parties by files, in rounds, and the party's side of a study."""

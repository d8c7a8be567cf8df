"""What is checked after a drill, and from what evidence. Nothing here runs in service: the journal
and its triggers are put into the drill's own database, and into no other."""

"""What a run says, for people: a table for terminals, a page in Markdown, and one file of HTML that opens anywhere."""

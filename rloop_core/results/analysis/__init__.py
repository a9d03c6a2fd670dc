"""What a run did to its policy: what was learnt, forgotten and regained, and how alike its solutions are."""

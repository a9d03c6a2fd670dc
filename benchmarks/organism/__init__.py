"""How the bundled policies are made: pretrained on sums and differences that are worked in several styles."""

"""The tests, as a package: no other package of this name can take its place."""

"""Rules of operators that read or write elements at computed indices."""

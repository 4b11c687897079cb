"""What the project needs beside its code: its set-up, and the making of pages."""

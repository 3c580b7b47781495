"""What methods cost on the wire: by formula, by rehearsal, as measured, as the papers print it."""

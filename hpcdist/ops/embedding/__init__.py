"""Tables read by ids: look-ups, their sparse gradients (SelectedRows), sums of repeated rows."""

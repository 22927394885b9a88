"""Pure decisions: desired, observed and now in; actions, status and the next look out."""

"""What the page of a run tells of the stages that its model is cut into."""

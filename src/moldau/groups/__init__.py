"""The group coordinator as a pure state machine: members, generations, offsets."""

//! nyx-policy: header to be written with the room.

//! nyx-sim: header to be written with the room.

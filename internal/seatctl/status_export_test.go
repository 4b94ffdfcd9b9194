package seatctl

// View is what status shows.
type View = view

// Draw draws a view without colour, as lines that have ended; height 0 is as many as it
// takes.
func Draw(v View, width, height int) string { return screen{width: width, height: height}.draw(v) }

// DrawInPlace draws over the view before, in colour.
func DrawInPlace(v View, width, height int) string {
	return screen{width: width, height: height, colour: true}.inPlace(v)
}

// WhenIn prints a time and how far it is from now.
var WhenIn = whenIn

package wall

// Remembered is how many steps and minutes are kept.
func (w *Wall) Remembered() (steps, minutes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.history.admitted), len(w.history.holds)
}

package app

// InFlight is how many calls and how much background work have not ended.
func (a *API) InFlight() int { return a.flights.InFlight() }

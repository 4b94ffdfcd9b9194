package httpapi

import "github.com/go-chi/chi/v5"

// Routes lets a test walk every route there is.
func (s *Server) Routes() chi.Routes { return s.router }

package embedded

// StoreDir is where a server in memory keeps its streams.
func StoreDir(s *Server) string { return s.temp }

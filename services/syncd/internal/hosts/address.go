package hosts

import "net"

// NodeAddresses returns the node's own addresses, IPv4 first: those that it would send from. None when it has no route to anywhere.
func NodeAddresses() []string {
	var list []string
	// The addresses are reserved for documentation: connecting a datagram socket only asks the kernel for a route, nothing is sent.
	for _, to := range []struct{ network, address string }{{"udp4", "192.0.2.1:9"}, {"udp6", "[2001:db8::1]:9"}} {
		conn, err := net.Dial(to.network, to.address)
		if err != nil {
			continue
		}
		if a, ok := conn.LocalAddr().(*net.UDPAddr); ok && a.IP.IsGlobalUnicast() {
			list = append(list, a.IP.String())
		}
		if err := conn.Close(); err != nil {
			continue
		}
	}
	return list
}

package daemon

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestAddressThatOthersReach(t *testing.T) {
	all := &net.TCPAddr{IP: net.IPv4zero, Port: 7001}
	cases := map[string]struct {
		config    Config
		listening net.Addr
		want      string
	}{
		"the one listened on":             {Config{NATSURL: "nats://127.0.0.1:4222"}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7001}, "127.0.0.1:7001"},
		"all: what faces NATS":            {Config{NATSURL: "nats://127.0.0.1:4222"}, all, "127.0.0.1:7001"},
		"all: the first that can be used": {Config{NATSURL: "nats://256.0.0.1:4222,nats://127.0.0.1"}, all, "127.0.0.1:7001"},
		"named":                           {Config{Advertise: "syncd.local"}, all, "syncd.local:7001"},
		"named, IPv6":                     {Config{Advertise: "fd00::1"}, &net.TCPAddr{IP: net.IPv6zero, Port: 7001}, "[fd00::1]:7001"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.config.reachable(t.Context(), c.listening)
			if err != nil || got != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
	if got, err := (&Config{NATSURL: "nats://256.0.0.1:4222"}).reachable(t.Context(), all); err == nil {
		t.Errorf("with no NATS to face: got %q, want an error", got)
	}
}

func TestAddressIsWrittenForTheHealthCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "address")
	c := Config{AddressFile: file}
	for _, port := range []int{7001, 7002} {
		if err := c.writeAddress(&net.TCPAddr{IP: net.IPv4zero, Port: port}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "127.0.0.1:7002\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

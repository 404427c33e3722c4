package up

import (
	"strings"
	"testing"
)

// TestSharedBus checks what goes together where several nodes share a bus.
func TestSharedBus(t *testing.T) {
	shared := func(change func(*Config)) Config {
		c := Default()
		c.NATSURL, c.NATSKeysDir, c.TLSDir, c.Address, c.BusReplicas = "nats://10.0.0.1:4222", "/keys/a", "/tls", "10.0.0.1", 3
		change(&c)
		return c
	}
	for want, change := range map[string]func(*Config){
		"": func(*Config) {},
		"--nats-keys-dir: is for a bus that --nats-url names": func(c *Config) { c.NATSURL, c.BusReplicas = "", 1 },
		"--bus-replicas 3: our own bus is one server":         func(c *Config) { c.NATSURL, c.NATSKeysDir = "", "" },
		"--bus-replicas 7: want 1 to 5":                       func(c *Config) { c.BusReplicas = 7 },
		`--address "host": want an IP address`:                func(c *Config) { c.Address = "host" },
		"--address: other hosts reach the services over TLS":  func(c *Config) { c.TLSDir = "" },
		`--nats-keys-dir "keys": want an absolute path`:       func(c *Config) { c.NATSKeysDir = "keys" },
	} {
		err := shared(change).Validate()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestServiceArgumentsOnASharedBus checks that services get the node's own keys and are found by others.
func TestServiceArgumentsOnASharedBus(t *testing.T) {
	c := Default()
	c.NATSURL, c.NATSKeysDir, c.TLSDir, c.Address, c.BusReplicas = "nats://10.0.0.1:4222", "/keys/a", "/tls", "10.0.0.1", 3
	args := strings.Join((&stack{cfg: c}).serviceArgs("pleg"), " ")
	for _, want := range []string{"--nats-nkey-seed /keys/a/pleg.nk", "--bus-replicas 3", "--grpc-listen 10.0.0.1:0", "--tls-dir /tls"} {
		if !strings.Contains(args, want) {
			t.Errorf("no %s in %s", want, args)
		}
	}
	alone := strings.Join((&stack{cfg: Default()}).serviceArgs("pleg"), " ")
	for _, not := range []string{"--nats-nkey-seed", "--bus-replicas", "--grpc-listen"} {
		if strings.Contains(alone, not) {
			t.Errorf("%s in %s", not, alone)
		}
	}
}

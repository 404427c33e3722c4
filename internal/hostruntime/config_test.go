package hostruntime

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// complete is a configuration whose programs are there, as empty files.
func complete(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	c := DefaultConfig(dir)
	files := []string{
		c.program("containerd"), c.program("containerd-shim-runc-v2"), c.program("runc"), c.program("ctr"),
		filepath.Join(c.CNIBinDir, "bridge"), filepath.Join(c.CNIBinDir, "host-local"), filepath.Join(c.CNIBinDir, "portmap"),
	}
	for _, i := range c.Images {
		files = append(files, i.Archive)
	}
	for _, file := range files {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		// want is in the error; empty: no error.
		want string
	}{
		{"default", func(*Config) {}, ""},
		{"relative root", func(c *Config) { c.Root = "lib" }, "field Root"},
		{"root of the host", func(c *Config) { c.State = "/" }, "field State"},
		{"long state", func(c *Config) { c.State = "/run/" + strings.Repeat("x", 40) }, "too long"},
		{"long bridge", func(c *Config) { c.Bridge = "a-bridge-with-a-long-name" }, "field Bridge"},
		{"no bridge", func(c *Config) { c.Bridge = "" }, "field Bridge"},
		{"address for a subnet", func(c *Config) { c.PodCIDR = "10.188.0.1/16" }, "field PodCIDR"},
		{"IPv6", func(c *Config) { c.PodCIDR = "fd00::/64" }, "field PodCIDR"},
		{"small subnet", func(c *Config) { c.PodCIDR = "10.188.0.0/30" }, "field PodCIDR"},
		{"no sandbox image", func(c *Config) { c.SandboxImage = "" }, "field SandboxImage"},
		{"no programs", func(c *Config) { c.BinDir = "/nowhere" }, "make runtime images"},
		{"no archive", func(c *Config) { c.Images = append(c.Images, Image{Name: "x", Archive: "/nowhere/x.tar"}) }, "/nowhere/x.tar"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := complete(t)
			c.change(&config)
			err := config.Validate()
			if c.want == "" && err != nil {
				t.Errorf("error %v", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestRenderFollowsTheHost(t *testing.T) {
	config := DefaultConfig("/opt/podplane")
	for _, c := range []struct {
		host Host
		want []string
	}{
		{Host{}, []string{"restrict_oom_score_adj = true", "SystemdCgroup = false"}},
		{Host{SysResource: true, Systemd: true, CgroupV2: true}, []string{"restrict_oom_score_adj = false", "SystemdCgroup = true"}},
	} {
		content, err := config.renderContainerd(c.host)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range append(c.want, `address = "/run/podplane/containerd/containerd.sock"`, `BinaryName = "/opt/podplane/bin/runc"`) {
			if !strings.Contains(content, want+"\n") {
				t.Errorf("host %+v: %q is not in\n%s", c.host, want, content)
			}
		}
		if strings.Contains(content, "<no value>") {
			t.Errorf("a value is missing in\n%s", content)
		}
	}
}

func TestRenderNetwork(t *testing.T) {
	config := DefaultConfig("/opt/podplane")
	for _, iptables := range []bool{true, false} {
		content, err := config.renderNetwork(Host{Iptables: iptables})
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Name    string
			Plugins []struct {
				Type, Bridge string
				IPAM         struct{ Ranges [][]struct{ Subnet string } }
			}
		}
		if err := json.Unmarshal([]byte(content), &list); err != nil {
			t.Fatal(err)
		}
		var types []string
		for _, p := range list.Plugins {
			types = append(types, p.Type)
		}
		want := []string{"bridge"}
		if iptables {
			want = append(want, "portmap")
		}
		if !slices.Equal(types, want) {
			t.Errorf("iptables %v: plugins %q, want %q", iptables, types, want)
		}
		bridge := list.Plugins[0]
		if list.Name != "podplane-podplane0" || bridge.Bridge != "podplane0" || bridge.IPAM.Ranges[0][0].Subnet != "10.188.0.0/16" {
			t.Errorf("network is\n%s", content)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
	t.Setenv("OTEL_SERVICE_NAME", "podplane")
	t.Setenv("HTTPS_PROXY", "http://proxy:3128")
	t.Setenv("SOME_TOKEN", "secret")
	config := DefaultConfig("/opt/podplane")
	config.Env = []string{"GOMAXPROCS=1"}
	env := config.environment()
	for _, want := range []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", "OTEL_SERVICE_NAME=containerd", "HTTPS_PROXY=http://proxy:3128", "GOMAXPROCS=1",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %q", want, env)
		}
	}
	for _, variable := range env {
		if strings.HasPrefix(variable, "SOME_TOKEN") || variable == "OTEL_SERVICE_NAME=podplane" {
			t.Errorf("%s is passed on", variable)
		}
		if path, ok := strings.CutPrefix(variable, "PATH="); ok && !strings.HasPrefix(path, "/opt/podplane/bin:") {
			t.Errorf("PATH is %s", path)
		}
	}
}

func TestAddRegistry(t *testing.T) {
	config := DefaultConfig("/opt/podplane")
	config.State = t.TempDir()
	if err := config.AddRegistry("127.0.0.1:5000"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(config.State, "certs.d", "127.0.0.1:5000", "hosts.toml"))
	if err != nil || !strings.Contains(string(content), `[host."http://127.0.0.1:5000"]`) {
		t.Errorf("hosts.toml is %q, %v", content, err)
	}
	for _, bad := range []string{"", "../x", "a b", "http://127.0.0.1"} {
		if err := config.AddRegistry(bad); err == nil {
			t.Errorf("registry %q is taken", bad)
		}
	}
}

func TestCheckSubnet(t *testing.T) {
	if err := checkSubnet("podplane-none", "198.18.77.0/24"); err != nil {
		t.Errorf("a subnet that nobody uses: %v", err)
	}
	if err := checkSubnet("podplane-none", "127.0.0.0/16"); err == nil || !strings.Contains(err.Error(), "interface lo") {
		t.Errorf("the loopback's subnet: %v", err)
	}
	if err := checkSubnet("lo", "198.18.77.0/24"); err == nil || !strings.Contains(err.Error(), "ip link delete lo") {
		t.Errorf("a bridge with another subnet: %v", err)
	}
}

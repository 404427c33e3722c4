package hosts_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/services/syncd/internal/hosts"
)

func pod(change ...func(*v1.PodSpec)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0"}, Spec: v1.PodSpec{DNSPolicy: v1.DNSClusterFirst}}
	for _, c := range change {
		c(&p.Spec)
	}
	return p
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + "-b"
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want string
	}{
		"the name":        {pod(), "web-0"},
		"its own":         {pod(func(s *v1.PodSpec) { s.Hostname = "db" }), "db"},
		"cut":             {pod(func(s *v1.PodSpec) { s.Hostname = long }), strings.Repeat("a", 62)},
		"fully qualified": {pod(func(s *v1.PodSpec) { yes := true; s.Subdomain, s.SetHostnameAsFQDN = "sub", &yes }), "web-0.sub.ns.svc.cluster.local"},
		"override":        {pod(func(s *v1.PodSpec) { o := "x.example"; s.HostnameOverride = &o }), "x.example"},
	} {
		got, err := hosts.KernelHostname(test.pod, "cluster.local")
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, test.want)
		}
	}
	yes := true
	if _, err := hosts.KernelHostname(pod(func(s *v1.PodSpec) { s.Subdomain, s.SetHostnameAsFQDN = strings.Repeat("s", 60), &yes }), "cluster.local"); err == nil {
		t.Error("a name that Linux can't hold is taken")
	}
}

func TestFile(t *testing.T) {
	aliases := func(s *v1.PodSpec) { s.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"a", "b"}}} }
	file := string(hosts.File(pod(aliases, func(s *v1.PodSpec) { s.Subdomain = "sub" }), []string{"10.0.0.1", "fd00::1"}, "cluster.local", []byte("ignored")))
	for _, want := range []string{"127.0.0.1\tlocalhost\n", "10.0.0.1\tweb-0.sub.ns.svc.cluster.local\tweb-0\n", "fd00::1\tweb-0.sub", "192.0.2.7\ta\tb\n"} {
		if !strings.Contains(file, want) {
			t.Errorf("no %q in\n%s", want, file)
		}
	}
	if strings.Contains(file, "ignored") {
		t.Error("the node's file is in a pod's own")
	}
	file = string(hosts.File(pod(aliases, func(s *v1.PodSpec) { s.HostNetwork = true }), nil, "", []byte("192.0.2.1 node")))
	if !strings.Contains(file, "192.0.2.1 node\n") || !strings.Contains(file, "192.0.2.7\ta\tb") {
		t.Errorf("with the host's network:\n%s", file)
	}
}

func TestParseResolvConf(t *testing.T) {
	r := hosts.ParseResolvConf([]byte("# comment\nnameserver 192.0.2.53\nnameserver nonsense\nnameserver fd00::53\ndomain old.example\nsearch a.example b.example. .\noptions ndots:2 rotate\n; end"))
	if !slices.Equal(r.Servers, []string{"192.0.2.53", "fd00::53"}) || !slices.Equal(r.Searches, []string{"a.example", "b.example", "."}) || !slices.Equal(r.Options, []string{"ndots:2", "rotate"}) {
		t.Errorf("parsed %+v", r)
	}
}

func TestResolve(t *testing.T) {
	node := hosts.Resolver{Servers: []string{"192.0.2.53"}, Searches: []string{"node.example"}, Options: []string{"rotate"}}
	cluster := hosts.Cluster{Domain: "cluster.local", Servers: []string{"10.96.0.10"}}
	two := "2"
	for name, test := range map[string]struct {
		pod       *v1.Pod
		cluster   hosts.Cluster
		want      string
		complaint bool
	}{
		"default":                   {pod: pod(func(s *v1.PodSpec) { s.DNSPolicy = v1.DNSDefault }), cluster: cluster, want: "192.0.2.53|node.example|rotate"},
		"cluster first":             {pod: pod(), cluster: cluster, want: "10.96.0.10|ns.svc.cluster.local svc.cluster.local cluster.local node.example|ndots:5"},
		"cluster first, no cluster": {pod: pod(), want: "192.0.2.53|node.example|rotate"},
		"cluster first, host's":     {pod: pod(func(s *v1.PodSpec) { s.HostNetwork = true }), cluster: cluster, want: "192.0.2.53|node.example|rotate"},
		"cluster first on host's":   {pod: pod(func(s *v1.PodSpec) { s.HostNetwork, s.DNSPolicy = true, v1.DNSClusterFirstWithHostNet }), cluster: cluster, want: "10.96.0.10|ns.svc.cluster.local svc.cluster.local cluster.local node.example|ndots:5"},
		"none": {
			pod: pod(func(s *v1.PodSpec) {
				s.DNSPolicy, s.DNSConfig = v1.DNSNone, &v1.PodDNSConfig{Nameservers: []string{"192.0.2.9"}, Searches: []string{"x"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
			}), cluster: cluster, want: "192.0.2.9|x|ndots:2 edns0",
		},
		"options are replaced": {
			pod: pod(func(s *v1.PodSpec) {
				s.DNSConfig = &v1.PodDNSConfig{Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}}}
			}), cluster: cluster,
			want: "10.96.0.10|ns.svc.cluster.local svc.cluster.local cluster.local node.example|ndots:2",
		},
		"too many servers": {
			pod: pod(func(s *v1.PodSpec) {
				s.DNSPolicy, s.DNSConfig = v1.DNSDefault, &v1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}}
			}),
			want: "192.0.2.53 192.0.2.1 192.0.2.2|node.example|rotate", complaint: true,
		},
	} {
		dns, complaint := hosts.Resolve(test.pod, node, test.cluster)
		got := strings.Join([]string{strings.Join(dns.Servers, " "), strings.Join(dns.Searches, " "), strings.Join(dns.Options, " ")}, "|")
		if got != test.want || (complaint != "") != test.complaint {
			t.Errorf("%s:\n got %s (%s)\nwant %s", name, got, complaint, test.want)
		}
	}
	if node.Options[0] != "rotate" || len(node.Servers) != 1 {
		t.Error("the node's settings were changed")
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 1.2.3.4\nsearch a b\noptions x"))
	f.Add([]byte("search"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dns, _ := hosts.Resolve(pod(), hosts.ParseResolvConf(data), hosts.Cluster{})
		if len(dns.Servers) > 3 || len(dns.Searches) > 32 || len(strings.Join(dns.Searches, " ")) > 2048 {
			t.Errorf("over the limits: %+v", dns)
		}
	})
}

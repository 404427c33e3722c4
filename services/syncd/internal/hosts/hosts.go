// Package hosts says what a pod's names are: its hostname, its /etc/hosts and its resolver. Pure functions; the caller reads and writes files.
package hosts

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
)

const (
	maxHostname    = 63
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// Hostname returns the pod's hostname and, when it has a subdomain, its domain.
func Hostname(p *v1.Pod, clusterDomain string) (host, domain string) {
	if o := p.Spec.HostnameOverride; o != nil {
		return *o, ""
	}
	host = p.Spec.Hostname
	if host == "" {
		host = p.Name
	}
	if len(host) > maxHostname {
		host = strings.TrimRight(host[:maxHostname], "-.")
	}
	if p.Spec.Subdomain != "" && clusterDomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", p.Spec.Subdomain, p.Namespace, clusterDomain)
	}
	return host, domain
}

// KernelHostname returns what gethostname answers in the pod. A name that Linux can't hold is an error.
func KernelHostname(p *v1.Pod, clusterDomain string) (string, error) {
	host, domain := Hostname(p, clusterDomain)
	if p.Spec.SetHostnameAsFQDN == nil || !*p.Spec.SetHostnameAsFQDN || domain == "" {
		return host, nil
	}
	if fqdn := host + "." + domain; len(fqdn) <= 64 {
		return fqdn, nil
	}
	return "", fmt.Errorf("the fully qualified name of pod %s/%s is longer than the 64 characters that a hostname may have", p.Namespace, p.Name)
}

// File returns the pod's /etc/hosts. With the host's network it is the node's file (given) and the aliases.
func File(p *v1.Pod, ips []string, clusterDomain string, nodeFile []byte) []byte {
	var b bytes.Buffer
	if p.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(nodeFile)
		if len(nodeFile) > 0 && nodeFile[len(nodeFile)-1] != '\n' {
			b.WriteByte('\n')
		}
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
		b.WriteString("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		host, domain := Hostname(p, clusterDomain)
		for _, ip := range ips {
			if domain != "" {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, host)
			}
		}
	}
	if len(p.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range p.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return b.Bytes()
}

// Cluster is the cluster's resolver, where there is one.
type Cluster struct {
	Domain  string
	Servers []string
}

// Resolver is the content of a resolv.conf.
type Resolver struct {
	Servers  []string
	Searches []string
	Options  []string
}

// ParseResolvConf reads a resolv.conf. What it does not understand it leaves out, as the resolver does.
func ParseResolvConf(data []byte) Resolver {
	var r Resolver
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		fields := strings.Fields(line)
		switch fields[0] {
		case "nameserver":
			if len(fields) > 1 {
				if _, err := netip.ParseAddr(fields[1]); err == nil {
					r.Servers = append(r.Servers, fields[1])
				}
			}
		case "search", "domain":
			r.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				r.Searches = append(r.Searches, s)
			}
		case "options":
			r.Options = append(r.Options, fields[1:]...)
		}
	}
	return r
}

// Resolve returns the pod's resolver, and what had to be left out or replaced, for an Event: "" when nothing.
func Resolve(p *v1.Pod, node Resolver, cluster Cluster) (dns *cri.DNSConfig, complaint string) {
	base := node
	switch policy := p.Spec.DNSPolicy; {
	case policy == v1.DNSNone:
		base = Resolver{}
	case policy == v1.DNSDefault, policy == v1.DNSClusterFirst && p.Spec.HostNetwork, len(cluster.Servers) == 0:
	default:
		searches := []string{fmt.Sprintf("%s.svc.%s", p.Namespace, cluster.Domain), "svc." + cluster.Domain, cluster.Domain}
		base = Resolver{Servers: cluster.Servers, Searches: append(searches, node.Searches...), Options: []string{"ndots:5"}}
	}
	base = Resolver{Servers: slices.Clone(base.Servers), Searches: slices.Clone(base.Searches), Options: slices.Clone(base.Options)}
	if c := p.Spec.DNSConfig; c != nil {
		base.Servers = unique(append(base.Servers, c.Nameservers...))
		base.Searches = append(base.Searches, c.Searches...)
		base.Options = mergeOptions(base.Options, c.Options)
	}
	base.Searches = unique(base.Searches)
	complaint = base.limit()
	return &cri.DNSConfig{Servers: base.Servers, Searches: base.Searches, Options: base.Options}, complaint
}

// limit cuts what resolvers do not take.
func (r *Resolver) limit() string {
	var cut []string
	if len(r.Servers) > maxNameservers {
		r.Servers = r.Servers[:maxNameservers]
		cut = append(cut, "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "+strings.Join(r.Servers, " "))
	}
	before := len(r.Searches)
	if before > maxSearches {
		r.Searches = r.Searches[:maxSearches]
	}
	for len(strings.Join(r.Searches, " ")) > maxSearchChars {
		r.Searches = r.Searches[:len(r.Searches)-1]
	}
	if len(r.Searches) != before {
		cut = append(cut, "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "+strings.Join(r.Searches, " "))
	}
	return strings.Join(cut, "; ")
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// mergeOptions adds the pod's options; one of the same name replaces.
func mergeOptions(base []string, add []v1.PodDNSConfigOption) []string {
	for _, o := range add {
		base = slices.DeleteFunc(base, func(s string) bool {
			name, _, _ := strings.Cut(s, ":")
			return name == o.Name
		})
		if o.Value != nil && *o.Value != "" {
			base = append(base, o.Name+":"+*o.Value)
		} else {
			base = append(base, o.Name)
		}
	}
	return base
}

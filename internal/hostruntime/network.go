package hostruntime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
)

// checkSubnet refuses a subnet that the host uses elsewhere: its addresses could not be reached from one of the two.
func checkSubnet(bridge, cidr string) error {
	want, err := netip.ParsePrefix(cidr)
	if err != nil {
		return fmt.Errorf("subnet of the pods: %w", err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			// The interface has gone since.
			continue
		}
		for _, address := range addresses {
			used, err := netip.ParsePrefix(address.String())
			if err != nil || !used.Addr().Is4() {
				continue
			}
			switch {
			case i.Name == bridge && (used.Bits() != want.Bits() || used.Masked() != want):
				return fmt.Errorf("bridge %s has the address %s, which is not in the pods' subnet %s: remove it with `ip link delete %s`", bridge, used, want, bridge)
			case i.Name != bridge && used.Masked().Overlaps(want):
				return fmt.Errorf("the pods' subnet %s overlaps %s of interface %s: choose another", want, used, i.Name)
			}
		}
	}
	return nil
}

// rule is one iptables rule without its command.
type rule struct {
	table, chain string
	spec         []string
}

// rules let pods reach other hosts under the host's address, and let their traffic and what is meant for host ports pass a
// host whose forward policy drops.
func (c *Config) rules() []rule {
	comment := []string{"-m", "comment", "--comment", c.network()}
	return []rule{
		{"nat", "POSTROUTING", append([]string{"-s", c.PodCIDR, "!", "-o", c.Bridge, "-j", "MASQUERADE"}, comment...)},
		{"filter", "FORWARD", append([]string{"-i", c.Bridge, "-j", "ACCEPT"}, comment...)},
		{"filter", "FORWARD", append([]string{"-o", c.Bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "ACCEPT"}, comment...)},
	}
}

func (c *Config) addRules(ctx context.Context) error {
	for _, r := range c.rules() {
		present, err := iptablesHas(ctx, r)
		if err != nil {
			return err
		}
		if present {
			continue
		}
		if _, err := iptables(ctx, r.table, append([]string{"-I", r.chain}, r.spec...)...); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) removeRules(ctx context.Context) error {
	for _, r := range c.rules() {
		present, err := iptablesHas(ctx, r)
		if err != nil {
			return err
		}
		if !present {
			continue
		}
		if _, err := iptables(ctx, r.table, append([]string{"-D", r.chain}, r.spec...)...); err != nil {
			return err
		}
	}
	return c.removeHostPorts(ctx)
}

// removeHostPorts removes what the portmap plugin left for pods of this network: a jump from its common chain for each pod,
// and the pod's chain. Both carry the network's name in a comment.
func (c *Config) removeHostPorts(ctx context.Context) error {
	listing, err := iptables(ctx, "nat", "-S")
	if err != nil {
		return err
	}
	var jumps [][]string
	chains := map[string]bool{}
	for line := range strings.Lines(listing) {
		words := splitRule(line)
		if len(words) < 2 || words[0] != "-A" || !c.ours(words) {
			continue
		}
		if strings.HasPrefix(words[1], "CNI-DN-") {
			chains[words[1]] = true
			continue
		}
		for i, word := range words[:len(words)-1] {
			if word == "-j" && strings.HasPrefix(words[i+1], "CNI-DN-") {
				chains[words[i+1]] = true
				jumps = append(jumps, append([]string{"-D"}, words[1:]...))
			}
		}
	}
	for _, jump := range jumps {
		if _, err := iptables(ctx, "nat", jump...); err != nil {
			return err
		}
	}
	for chain := range chains {
		if _, err := iptables(ctx, "nat", "-F", chain); err != nil {
			return err
		}
		if _, err := iptables(ctx, "nat", "-X", chain); err != nil {
			return err
		}
	}
	return nil
}

// ours says whether a rule's comment names this network.
func (c *Config) ours(words []string) bool {
	for i, word := range words[:len(words)-1] {
		if word == "--comment" && strings.Contains(words[i+1], `"`+c.network()+`"`) {
			return true
		}
	}
	return false
}

// splitRule splits a line of `iptables -S` into words, some of which are in double quotes with backslashes before quotes.
func splitRule(line string) []string {
	var words []string
	var word strings.Builder
	quoted, escaped, open := false, false, false
	for _, r := range strings.TrimSpace(line) {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quoted:
			escaped = true
		case r == '"':
			quoted, open = !quoted, true
		case r == ' ' && !quoted:
			if open {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
			open = true
		}
	}
	if open {
		words = append(words, word.String())
	}
	return words
}

func iptablesHas(ctx context.Context, r rule) (bool, error) {
	_, err := iptables(ctx, r.table, append([]string{"-C", r.chain}, r.spec...)...)
	// 1 is the answer no, or a chain that does not exist; anything else is a failure.
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return false, nil
	}
	return err == nil, err
}

func iptables(ctx context.Context, table string, args ...string) (string, error) {
	program, err := findProgram("iptables")
	if err != nil {
		return "", err
	}
	// -w: others change the tables too; wait for them, a bounded time.
	args = append([]string{"-w", "10", "-t", table}, args...)
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("iptables %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// removeLink deletes a network interface that may have gone already.
func removeLink(ctx context.Context, name string) error {
	if _, err := net.InterfaceByName(name); err != nil {
		return nil
	}
	program, err := findProgram("ip")
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, program, "link", "delete", name).CombinedOutput(); err != nil {
		return fmt.Errorf("delete interface %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

package node

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const goarch = runtime.GOARCH

// facts are what the machine says about itself. What can't be read is left empty.
type facts struct {
	cpus                                           int
	memory, disk                                   int64
	machineID, systemUUID, bootID, kernel, osImage string
	addresses                                      []string
	booted                                         time.Time
}

func readFacts(root string, addresses []string) facts {
	f := facts{
		cpus: runtime.NumCPU(), memory: memTotal(), disk: DiskTotal(root), machineID: line("/etc/machine-id"),
		systemUUID: line("/sys/class/dmi/id/product_uuid"), bootID: line("/proc/sys/kernel/random/boot_id"),
		kernel: line("/proc/sys/kernel/osrelease"), osImage: osName(), addresses: addresses,
	}
	if len(f.addresses) == 0 {
		f.addresses = hostAddresses()
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.booted = time.Now().Add(-time.Duration(info.Uptime) * time.Second).Truncate(time.Second)
	}
	return f
}

func line(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	return strings.TrimSpace(string(first))
}

// value finds "key<separator>value" in a file of lines.
func value(path, key, separator string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), separator); ok && strings.TrimSpace(k) == key {
			return strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return ""
}

func memTotal() int64 {
	kib, err := strconv.ParseInt(strings.TrimSuffix(value("/proc/meminfo", "MemTotal", ":"), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

// DiskTotal is the size of the file system of a directory, or of the top one where there is no such directory yet.
func DiskTotal(root string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(root, &st) != nil && unix.Statfs("/", &st) != nil {
		return 0
	}
	return int64(st.Blocks) * st.Bsize
}

func osName() string {
	if n := value("/etc/os-release", "PRETTY_NAME", "="); n != "" {
		return n
	}
	return "Linux"
}

// hostAddresses are the first usable IPv4 and IPv6 address, of the interface with the default route where there is one.
func hostAddresses() []string {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	way := defaultInterface()
	var v4, v6 string
	for _, i := range interfaces {
		if way != "" && i.Name != way {
			continue
		}
		list, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range list {
			n, ok := a.(*net.IPNet)
			if !ok || !n.IP.IsGlobalUnicast() {
				continue
			}
			if n.IP.To4() != nil && v4 == "" {
				v4 = n.IP.String()
			} else if n.IP.To4() == nil && v6 == "" {
				v6 = n.IP.String()
			}
		}
	}
	var found []string
	for _, a := range []string{v4, v6} {
		if a != "" {
			found = append(found, a)
		}
	}
	return found
}

// defaultInterface reads the kernel's IPv4 routes.
func defaultInterface() string {
	f, err := os.Open("/proc/net/route")
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	for s := bufio.NewScanner(f); s.Scan(); {
		c := strings.Fields(s.Text())
		if len(c) > 7 && c[1] == "00000000" && c[7] == "00000000" {
			return c[0]
		}
	}
	return ""
}

package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/telemetry"
)

// Config is what all services have in common; each service's configuration embeds it. Start from DefaultConfig.
type Config struct {
	Node            string        `json:"node" usage:"the node's name; default: the host's name in lower case"`
	Instance        string        `json:"instance" usage:"this replica's id; default: random"`
	NATSURL         string        `json:"natsURL" usage:"where NATS is; several addresses separated by commas"`
	NATSCredentials string        `json:"natsCredentials" usage:"file with NATS credentials"`
	NATSNKeySeed    string        `json:"natsNkeySeed" usage:"file with the seed of this service's NATS nkey"`
	TLSDir          string        `json:"tlsDir" usage:"directory of certificates (podplane certs): talk TLS with the other services and the bus, and with nobody else"`
	BusReplicas     int           `json:"busReplicas" usage:"copies that NATS keeps of what this service owns"`
	Root            string        `json:"root" usage:"directory for what must survive a restart"`
	RunDir          string        `json:"runDir" usage:"directory for what need not survive a reboot"`
	CRIEndpoint     string        `json:"criEndpoint" usage:"the container runtime's CRI socket"`
	HTTPListen      string        `json:"httpListen" usage:"address of /healthz, /readyz and /metrics"`
	GRPCListen      string        `json:"grpcListen" usage:"address of the gRPC server"`
	Advertise       string        `json:"advertise" usage:"host under which others reach this replica; default: the one it listens on, or where that is all addresses, the one that faces NATS"`
	AddressFile     string        `json:"addressFile" usage:"file to write the address of /healthz to, for podplane health"`
	InsecureListen  bool          `json:"insecureListen" usage:"allow listening on addresses that other hosts reach, without authentication"`
	LogLevel        string        `json:"logLevel" usage:"debug, info, warn or error"`
	LogFormat       string        `json:"logFormat" usage:"text or json"`
	TraceErrorSpans int           `json:"traceErrorSpans" usage:"finished spans of traces that were not sampled, which wait for an error to be sent after all; 0 waits for none"`
	ShutdownTimeout time.Duration `json:"shutdownTimeout" usage:"how long a graceful stop may take"`
	Pprof           bool          `json:"pprof" usage:"serve /debug/pprof"`
}

// maxTraceErrorSpans keeps what waits at some 100 MiB.
const maxTraceErrorSpans = 1 << 16

// DefaultConfig gives the defaults that a service's own start from.
func DefaultConfig() Config {
	return Config{
		NATSURL: "nats://127.0.0.1:4222", BusReplicas: 1, Root: "/var/lib/podplane", RunDir: "/run/podplane",
		CRIEndpoint: "unix:///run/containerd/containerd.sock", HTTPListen: "127.0.0.1:0", GRPCListen: "127.0.0.1:0",
		LogLevel: "info", LogFormat: telemetry.FormatText, TraceErrorSpans: telemetry.KeepSpans, ShutdownTimeout: 5 * time.Second,
	}
}

// Common gives the part that all services have; embedding Config implements Configuration with it.
func (c *Config) Common() *Config { return c }

// Configuration is a pointer to a struct that embeds Config.
type Configuration interface{ Common() *Config }

// Validate checks the common part.
func (c *Config) Validate(path *field.Path) field.ErrorList {
	list := c.validateLog(path)
	if c.Node != "" {
		for _, msg := range validation.IsDNS1123Subdomain(c.Node) {
			list = append(list, field.Invalid(path.Child("node"), c.Node, msg))
		}
	}
	if strings.ContainsAny(c.Instance, ". *>\t\r\n/") {
		list = append(list, field.Invalid(path.Child("instance"), c.Instance, "must not contain dots, slashes, stars, > or blanks"))
	}
	for _, u := range strings.Split(c.NATSURL, ",") {
		if parsed, err := url.Parse(strings.TrimSpace(u)); err != nil || parsed.Host == "" {
			list = append(list, field.Invalid(path.Child("natsURL"), u, "must be a URL such as nats://127.0.0.1:4222"))
		}
	}
	if c.NATSCredentials != "" && c.NATSNKeySeed != "" {
		list = append(list, field.Forbidden(path.Child("natsNkeySeed"), "natsCredentials is set: one of them is enough"))
	}
	if strings.ContainsAny(c.Advertise, ":/ \t\r\n") && net.ParseIP(c.Advertise) == nil {
		list = append(list, field.Invalid(path.Child("advertise"), c.Advertise, "must be a host's name or an IP address, without a port"))
	}
	if c.BusReplicas < 1 || c.BusReplicas > 5 {
		list = append(list, field.Invalid(path.Child("busReplicas"), c.BusReplicas, "must be from 1 to 5"))
	}
	if c.TraceErrorSpans < 0 || c.TraceErrorSpans > maxTraceErrorSpans {
		list = append(list, field.Invalid(path.Child("traceErrorSpans"), c.TraceErrorSpans, fmt.Sprintf("must be from 0 to %d", maxTraceErrorSpans)))
	}
	if c.ShutdownTimeout <= 0 {
		list = append(list, field.Invalid(path.Child("shutdownTimeout"), c.ShutdownTimeout, "must be more than 0s"))
	}
	list = append(list, ValidateListen(path.Child("httpListen"), c.HTTPListen, c.InsecureListen)...)
	return append(list, ValidateListen(path.Child("grpcListen"), c.GRPCListen, c.InsecureListen || c.TLSDir != "")...)
}

func (c *Config) validateLog(path *field.Path) field.ErrorList {
	var list field.ErrorList
	if new(slog.LevelVar).UnmarshalText([]byte(c.LogLevel)) != nil {
		list = append(list, field.NotSupported(path.Child("logLevel"), c.LogLevel, []string{"debug", "info", "warn", "error"}))
	}
	if c.LogFormat != telemetry.FormatText && c.LogFormat != telemetry.FormatJSON {
		list = append(list, field.NotSupported(path.Child("logFormat"), c.LogFormat, []string{telemetry.FormatText, telemetry.FormatJSON}))
	}
	return list
}

// ValidateListen checks an address to listen on: host:port, and on this host only unless insecure is allowed, because nobody is
// authenticated there.
func ValidateListen(path *field.Path, address string, insecure bool) field.ErrorList {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return field.ErrorList{field.Invalid(path, address, "must be host:port, such as 127.0.0.1:0")}
	}
	if ip := net.ParseIP(host); insecure || host == "localhost" || (ip != nil && ip.IsLoopback()) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, address, "must be a loopback address (127.0.0.1, [::1] or localhost): callers are not authenticated; insecureListen allows others")}
}

// complete fills in what has no fixed default.
func (c *Config) complete() error {
	if c.Node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the host's name (name the node with --node): %w", err)
		}
		c.Node = strings.ToLower(name)
	}
	if c.Instance == "" {
		id := make([]byte, 4)
		if _, err := rand.Read(id); err != nil {
			return fmt.Errorf("make an instance id: %w", err)
		}
		c.Instance = hex.EncodeToString(id)
	}
	return nil
}

package telemetry

import (
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/contrib/propagators/autoprop"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/podplane/podplane/internal/fault"
)

// Protocols of OTLP.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// Settings are what the OTEL_* variables say, beside what the SDK's exporters, batcher and span limits read from them by themselves:
// OTEL_EXPORTER_OTLP_{,TRACES_}{ENDPOINT,HEADERS,COMPRESSION,TIMEOUT,CERTIFICATE,CLIENT_CERTIFICATE,CLIENT_KEY,INSECURE}, OTEL_BSP_*,
// OTEL_SPAN_*_LIMIT and OTEL_ATTRIBUTE_*_LIMIT.
type Settings struct {
	// Export says whether spans are made and sent; Protocol how.
	Export   bool
	Protocol string
	// Sampler decides which traces are sent whatever happens in them; KeepErrors says whether of the others those with an error are.
	Sampler    sdktrace.Sampler
	KeepErrors bool
	// Propagator carries trace context over HTTP and gRPC.
	Propagator propagation.TextMapPropagator
	// OwnDelay says that nobody chose how long finished spans wait for company.
	OwnDelay bool
}

// ReadEnv reads the settings; getenv is os.Getenv. A variable that makes no sense is an error that names it.
func ReadEnv(getenv func(string) string) (Settings, error) {
	e := environment(getenv)
	s := Settings{OwnDelay: e.get("OTEL_BSP_SCHEDULE_DELAY") == ""}
	var err error
	if s.Propagator, err = e.propagator(); err != nil {
		return Settings{}, err
	}
	if s.Export, err = e.exports(); err != nil || !s.Export {
		return s, err
	}
	if s.Protocol, err = e.protocol(); err != nil {
		return Settings{}, err
	}
	if s.Sampler, s.KeepErrors, err = e.sampler(); err != nil {
		return Settings{}, err
	}
	return s, nil
}

type environment func(string) string

// get gives the first of the variables that is set; an empty one counts as not set.
func (e environment) get(names ...string) string {
	for _, n := range names {
		if v := strings.TrimSpace(e(n)); v != "" {
			return v
		}
	}
	return ""
}

// exports says whether there is somewhere to send spans to.
func (e environment) exports() (bool, error) {
	if strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := e.get("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "otlp":
		return true, nil // to the default endpoint, if none is named
	case "":
		return e.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") != "", nil
	default:
		return false, fault.New(fault.Invalid, "OTEL_TRACES_EXPORTER is %q, must be otlp or none", exporter)
	}
}

func (e environment) protocol() (string, error) {
	switch protocol := e.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "":
		return protocolHTTP, nil
	case protocolGRPC, protocolHTTP:
		return protocol, nil
	default:
		return "", fault.New(fault.Invalid, "OTEL_EXPORTER_OTLP_PROTOCOL is %q, must be grpc or http/protobuf", protocol)
	}
}

// sampler reads OTEL_TRACES_SAMPLER and its argument. Who turned sampling off wants no errors either.
func (e environment) sampler() (s sdktrace.Sampler, keepErrors bool, err error) {
	name := strings.ToLower(e.get("OTEL_TRACES_SAMPLER"))
	root, parent := strings.CutPrefix(name, "parentbased_")
	switch {
	case name == "":
		root, parent = "always_on", true
	case !slices.Contains([]string{"always_on", "always_off", "traceidratio"}, root):
		return nil, false, fault.New(fault.Invalid,
			"OTEL_TRACES_SAMPLER is %q, must be always_on, always_off, traceidratio, or one of them after parentbased_", name)
	}
	switch root {
	case "always_off":
		s = sdktrace.NeverSample()
	case "traceidratio":
		ratio := 1.0
		if arg := e.get("OTEL_TRACES_SAMPLER_ARG"); arg != "" {
			if ratio, err = strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
				return nil, false, fault.New(fault.Invalid, "OTEL_TRACES_SAMPLER_ARG is %q, must be a number from 0 to 1", arg)
			}
		}
		s = sdktrace.TraceIDRatioBased(ratio)
	default:
		s = sdktrace.AlwaysSample()
	}
	if parent {
		s = sdktrace.ParentBased(s)
	}
	return s, root != "always_off", nil
}

// propagator reads OTEL_PROPAGATORS. Records and messages on the bus always carry W3C trace context, whatever it says.
func (e environment) propagator() (propagation.TextMapPropagator, error) {
	list := e.get("OTEL_PROPAGATORS")
	if list == "" {
		list = "tracecontext,baggage"
	}
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	p, err := autoprop.TextMapPropagator(names...)
	if err != nil {
		return nil, fault.New(fault.Invalid, "OTEL_PROPAGATORS is %q: %w", list, err)
	}
	return p, nil
}

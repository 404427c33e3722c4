package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"github.com/podplane/podplane/internal/telemetry"
)

func (h *host) startTracing(ctx context.Context) (*telemetry.Tracing, error) {
	o := telemetry.Options{KeepSpans: h.cfg.TraceErrorSpans}
	if o.KeepSpans == 0 {
		o.KeepSpans = -1 // there 0 is the default
	}
	return telemetry.StartTracing(ctx, h.id, o, h.log)
}

// At most so many traces with errors are told to the other services, each second and at once. A flood of errors is still sent by this service.
const (
	tellEach   = 20
	tellAtOnce = 200
)

// shareErrors makes the services of a node send the whole of a trace that was not sampled when one of them meets an error in it.
func (h *host) shareErrors(t *telemetry.Tracing) error {
	if !t.KeepsErrors() {
		return nil
	}
	limit := rate.NewLimiter(tellEach, tellAtOnce)
	t.OnError(func(id string) {
		if !limit.Allow() {
			return
		}
		if err := h.conn.TellFailedTrace(id); err != nil {
			h.log.Debug("the other services were not told of a trace with an error", "trace_id", id, "error", err)
		}
	})
	return h.conn.HearFailedTraces(t.Keep)
}

// ownLog makes the libraries of a process that has one service log where and how the service does.
func ownLog(log *slog.Logger) {
	slog.SetDefault(log) // and with it the standard library's log
	klog.SetSlogLogger(log)
	grpclog.SetLoggerV2(grpcLog{log})
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
}

// grpcLog takes what gRPC says about connections: that one was lost is for the caller to say, who knows whether it matters.
type grpcLog struct{ log *slog.Logger }

func (l grpcLog) say(text string) { l.log.Debug("grpc: " + strings.TrimSpace(text)) }

func (grpcLog) Info(...any)          {}
func (grpcLog) Infoln(...any)        {}
func (grpcLog) Infof(string, ...any) {}
func (grpcLog) V(int) bool           { return false }

func (l grpcLog) Warning(args ...any)                 { l.say(fmt.Sprint(args...)) }
func (l grpcLog) Warningln(args ...any)               { l.say(fmt.Sprintln(args...)) }
func (l grpcLog) Warningf(format string, args ...any) { l.say(fmt.Sprintf(format, args...)) }
func (l grpcLog) Error(args ...any)                   { l.say(fmt.Sprint(args...)) }
func (l grpcLog) Errorln(args ...any)                 { l.say(fmt.Sprintln(args...)) }
func (l grpcLog) Errorf(format string, args ...any)   { l.say(fmt.Sprintf(format, args...)) }
func (l grpcLog) Fatal(args ...any)                   { l.fatal(fmt.Sprint(args...)) }
func (l grpcLog) Fatalln(args ...any)                 { l.fatal(fmt.Sprintln(args...)) }
func (l grpcLog) Fatalf(format string, args ...any)   { l.fatal(fmt.Sprintf(format, args...)) }

// fatal is called for what gRPC takes for a defect of the program.
func (l grpcLog) fatal(text string) { panic("grpc: " + text) }

// keepNames gives counters whose names, which are the kubelet's, do not end in _total as untyped values: OpenMetrics would append it, and what
// Prometheus stores would depend on the format that it asked for.
type keepNames struct{ prometheus.Gatherer }

// Gather gathers.
func (g keepNames) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.Gatherer.Gather()
	for _, f := range families {
		if f.GetType() != dto.MetricType_COUNTER || strings.HasSuffix(f.GetName(), "_total") {
			continue
		}
		f.Type = dto.MetricType_UNTYPED.Enum()
		for _, m := range f.Metric {
			m.Untyped, m.Counter = &dto.Untyped{Value: m.Counter.Value}, nil
		}
	}
	return families, err
}

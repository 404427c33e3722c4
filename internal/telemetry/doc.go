// Package telemetry sets tracing, logs and metrics up alike in every service.
//
// Tracing is configured by the standard OTEL_* variables alone. Without an endpoint (or with OTEL_SDK_DISABLED=true or
// OTEL_TRACES_EXPORTER=none) no exporter, no batcher and no goroutine exists and spans cost nothing; trace context that arrives from
// outside is passed on all the same. With an endpoint, spans are kept in a bounded queue (OTEL_BSP_MAX_QUEUE_SIZE, 2048), leave within
// half a second (OTEL_BSP_SCHEDULE_DELAY) and are dropped when the queue is full: telemetry never holds a service up.
//
// Span names are domain.noun.verb; attribute keys are the constants of this package. Logs carry trace_id and span_id of the context that
// they are written with.
package telemetry

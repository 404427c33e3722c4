package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

var headers = map[string][]string{
	"Pod":       {"NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"},
	"ConfigMap": {"NAMESPACE", "NAME", "DATA", "AGE"},
	"Secret":    {"NAMESPACE", "NAME", "TYPE", "DATA", "AGE"},
	"Event":     {"NAMESPACE", "LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"},
	"Node":      {"NAME", "STATUS", "AGE", "VERSION"},
}

func printTable(w io.Writer, r rest.Resource, items []json.RawMessage, output string, now time.Time) error {
	if output == "name" {
		for _, it := range items {
			var m metav1.PartialObjectMetadata
			if err := json.Unmarshal(it, &m); err != nil {
				return fmt.Errorf("decode %s: %w", r.Kind, err)
			}
			fmt.Fprintf(w, "%s/%s\n", strings.ToLower(r.Kind), m.Name)
		}
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header(r, output), "\t"))
	for _, it := range items {
		row, err := rowOf(r, it, output == "wide", now)
		if err != nil {
			return err
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// header names the cells of a row.
func header(r rest.Resource, output string) []string {
	if r.Kind == "Pod" && output == "wide" {
		return append(slices.Clone(headers[r.Kind]), "NODE", "UID")
	}
	return headers[r.Kind]
}

// rowOf is one object as the cells of a table.
func rowOf(r rest.Resource, raw json.RawMessage, wide bool, now time.Time) ([]string, error) {
	fail := func(err error) ([]string, error) { return nil, fmt.Errorf("decode %s: %w", r.Kind, err) }
	switch r.Kind {
	case "Pod":
		var p corev1.Pod
		if err := json.Unmarshal(raw, &p); err != nil {
			return fail(err)
		}
		return podRow(&p, wide, now), nil
	case "ConfigMap":
		var c corev1.ConfigMap
		if err := json.Unmarshal(raw, &c); err != nil {
			return fail(err)
		}
		return []string{c.Namespace, c.Name, fmt.Sprint(len(c.Data) + len(c.BinaryData)), age(c.CreationTimestamp, now)}, nil
	case "Secret":
		var s corev1.Secret
		if err := json.Unmarshal(raw, &s); err != nil {
			return fail(err)
		}
		return []string{s.Namespace, s.Name, string(s.Type), fmt.Sprint(len(s.Data)), age(s.CreationTimestamp, now)}, nil
	case "Event":
		var ev corev1.Event
		if err := json.Unmarshal(raw, &ev); err != nil {
			return fail(err)
		}
		return eventRow(&ev, now), nil
	default:
		var n corev1.Node
		if err := json.Unmarshal(raw, &n); err != nil {
			return fail(err)
		}
		return nodeRow(&n, now), nil
	}
}

func podRow(p *corev1.Pod, wide bool, now time.Time) []string {
	ready, restarts := 0, int32(0)
	for _, c := range p.Status.ContainerStatuses {
		if c.Ready {
			ready++
		}
		restarts += c.RestartCount
	}
	row := []string{
		p.Namespace, p.Name, fmt.Sprintf("%d/%d", ready, len(p.Spec.Containers)),
		podStatus(p), fmt.Sprint(restarts), age(p.CreationTimestamp, now), orNone(p.Status.PodIP),
	}
	if wide {
		row = append(row, p.Spec.NodeName, string(p.UID))
	}
	return row
}

// podStatus is the one word that says most about a pod, chosen as kubectl does:
// what goes wrong before what goes well, init containers first.
func podStatus(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "Terminating"
	}
	for i, c := range p.Status.InitContainerStatuses {
		switch {
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0, c.Started != nil && *c.Started:
			continue
		case c.State.Terminated != nil:
			return "Init:" + c.State.Terminated.Reason
		case c.State.Waiting != nil && c.State.Waiting.Reason != "PodInitializing" && c.State.Waiting.Reason != "":
			return "Init:" + c.State.Waiting.Reason
		}
		return fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != "" {
			return c.State.Waiting.Reason
		}
		if c.State.Terminated != nil && c.State.Terminated.Reason != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Reason == "" {
			return c.State.Terminated.Reason
		}
	}
	if p.Status.Reason != "" {
		return p.Status.Reason
	}
	if p.Status.Phase == corev1.PodSucceeded {
		return "Completed"
	}
	return string(p.Status.Phase)
}

func eventRow(ev *corev1.Event, now time.Time) []string {
	last := ev.LastTimestamp
	if last.IsZero() {
		last = ev.CreationTimestamp
	}
	seen := age(last, now)
	if ev.Count > 1 {
		seen += fmt.Sprintf(" (x%d)", ev.Count)
	}
	return []string{
		ev.Namespace, seen, ev.Type, ev.Reason,
		strings.ToLower(ev.InvolvedObject.Kind) + "/" + ev.InvolvedObject.Name, ev.Message,
	}
}

func nodeRow(n *corev1.Node, now time.Time) []string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = map[corev1.ConditionStatus]string{corev1.ConditionTrue: "Ready", corev1.ConditionFalse: "NotReady"}[c.Status]
		}
	}
	return []string{n.Name, orNone(status), age(n.CreationTimestamp, now), n.Status.NodeInfo.KubeletVersion}
}

func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

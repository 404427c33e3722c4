package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

// objectList is a list of any kind, with its items as they came.
type objectList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []json.RawMessage `json:"items"`
}

func getCommand(e *env) *cobra.Command {
	var (
		output, labels, fields, node string
		all, watch                   bool
	)
	cmd := &cobra.Command{
		Use:   "get RESOURCE [NAME]",
		Short: "Show pods, nodes, events, configmaps or secrets",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			r, err := rest.ResourceByName(args[0])
			if err != nil {
				return err
			}
			ns := e.namespace
			if all {
				ns = ""
			}
			req := rest.Request{Method: http.MethodGet, Path: r.Path(ns), Query: url.Values{}}
			if labels != "" {
				req.Query.Set("labelSelector", labels)
			}
			if fields != "" {
				req.Query.Set("fieldSelector", fields)
			}
			if node != "" {
				req.Query.Set("node", node)
			}
			switch {
			case node != "" && len(args) == 2:
				return errors.New("--node takes no name: names are unique over all nodes")
			case all && len(args) == 2:
				return fmt.Errorf("--all-namespaces takes no name; say with --namespace where %s is", args[1])
			case watch && len(args) == 2:
				return fmt.Errorf("--watch takes no name; use --field-selector metadata.name=%s", args[1])
			case watch:
				req.Query.Set("watch", "true")
				body, err := c.Stream(cmd.Context(), req)
				if err != nil {
					return err
				}
				return printWatch(cmd, r, body, output)
			case len(args) == 2:
				req.Path = r.ObjectPath(ns, args[1])
			}
			data, err := c.Do(cmd.Context(), req)
			if err != nil {
				return err
			}
			return printObjects(cmd.OutOrStdout(), r, data, output, len(args) == 2)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "", "json, yaml, name or wide; empty: a table")
	f.StringVarP(&labels, "selector", "l", "", "label selector, such as app=web")
	f.StringVar(&fields, "field-selector", "", "field selector, such as status.phase=Running")
	f.BoolVarP(&all, "all-namespaces", "A", false, "all namespaces")
	f.StringVar(&node, "node", "", "only what is on this node")
	f.BoolVarP(&watch, "watch", "w", false, "show changes as they come")
	return cmd
}

// printObjects prints one object or a list in the wanted form.
func printObjects(w io.Writer, r rest.Resource, data []byte, output string, single bool) error {
	switch output {
	case "json":
		var buf bytes.Buffer
		if err := json.Indent(&buf, bytes.TrimSpace(data), "", "  "); err != nil {
			return fmt.Errorf("answer is not JSON: %w", err)
		}
		_, err := fmt.Fprintln(w, buf.String())
		return err
	case "yaml":
		out, err := yaml.JSONToYAML(data)
		if err != nil {
			return fmt.Errorf("answer is not JSON: %w", err)
		}
		_, err = w.Write(out)
		return err
	case "", "wide", "name":
	default:
		return errOutput(output)
	}
	items := []json.RawMessage{data}
	if !single {
		var l objectList
		if err := json.Unmarshal(data, &l); err != nil {
			return fmt.Errorf("decode list of %s: %w", r.Plural, err)
		}
		items = l.Items
	}
	if len(items) == 0 {
		_, err := fmt.Fprintf(w, "no %s\n", r.Plural)
		return err
	}
	return printTable(w, r, items, output, time.Now())
}

func errOutput(output string) error {
	return fmt.Errorf("--output %q: want json, yaml, name or wide", output)
}

// printWatch prints a line for each change until the stream or the user ends it.
func printWatch(cmd *cobra.Command, r rest.Resource, body io.ReadCloser, output string) error {
	defer func() { _ = body.Close() }()
	switch output {
	case "json", "yaml", "name":
	case "", "wide":
		if err := printCells(cmd.OutOrStdout(), "CHANGE", header(r, output)); err != nil {
			return err
		}
	default:
		return errOutput(output)
	}
	dec := json.NewDecoder(body)
	for {
		var ev struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := dec.Decode(&ev); err != nil {
			if cmd.Context().Err() != nil || err == io.EOF {
				return nil
			}
			return fmt.Errorf("read watch of %s: %w", r.Plural, err)
		}
		if ev.Type == "ERROR" {
			var st metav1.Status
			_ = json.Unmarshal(ev.Object, &st)
			return fmt.Errorf("watch of %s ended: %s", r.Plural, st.Message)
		}
		if err := printChange(cmd.OutOrStdout(), r, ev.Type, ev.Object, output); err != nil {
			return err
		}
	}
}

// printChange prints one change in the wanted form.
func printChange(w io.Writer, r rest.Resource, kind string, object json.RawMessage, output string) error {
	switch output {
	case "json":
		_, err := fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", kind, bytes.TrimSpace(object))
		return err
	case "yaml":
		fmt.Fprintln(w, "---")
		return printObjects(w, r, object, output, true)
	case "name":
		return printObjects(w, r, object, output, true)
	}
	row, err := rowOf(r, object, output == "wide", time.Now())
	if err != nil {
		return err
	}
	return printCells(w, kind, row)
}

// printCells prints a row of a table that goes on growing: nobody knows how wide its columns get.
func printCells(w io.Writer, first string, cells []string) error {
	line := fmt.Sprintf("%-9s", first)
	for _, cell := range cells {
		line += fmt.Sprintf(" %-18s", cell)
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

// document is one object of a manifest, with the bytes that its author wrote.
type document struct {
	origin string
	object metav1.PartialObjectMetadata
	raw    []byte
}

func applyCommand(e *env) *cobra.Command {
	var files []string
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create what a manifest holds, or replace it where it is there already",
		Long: `Create the Pods, ConfigMaps and Secrets of a manifest, or replace those that are
there already. FILE is a file, a directory (its *.yaml, *.yml and *.json) or "-".`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			docs, err := readManifests(files, cmd.InOrStdin())
			if err != nil {
				return err
			}
			var errs []error
			for _, d := range docs {
				verb, err := apply(cmd.Context(), c, e.namespace, d, o)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", d.origin, err))
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s/%s %s\n", strings.ToLower(d.object.Kind), d.object.Name, verb)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "manifest file, directory or - (repeatable)")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "check only, store nothing")
	cmd.Flags().StringVar(&o.node, "node", "", "the node for new pods that name none")
	_ = cmd.MarkFlagRequired("filename")
	return cmd
}

// applyOptions are the flags of apply.
type applyOptions struct {
	dryRun bool
	node   string
}

// apply creates the document's object, or replaces it where its name is taken.
// It sends the author's own bytes, so that the server's strict decoding sees
// what was written.
func apply(ctx context.Context, c *rest.Client, namespace string, d document, o applyOptions) (string, error) {
	r, err := rest.ResourceByKind(d.object.APIVersion, d.object.Kind)
	if err != nil {
		return "", err
	}
	if d.object.Namespace != "" {
		namespace = d.object.Namespace
	}
	q := map[string][]string{}
	if o.dryRun {
		q["dryRun"] = []string{"All"}
	}
	create := maps.Clone(q)
	if o.node != "" && r.Plural == "pods" {
		create["node"] = []string{o.node}
	}
	req := rest.Request{Method: http.MethodPost, Path: r.Path(namespace), Query: q, ContentType: "application/yaml", Body: d.raw}
	req.Query = create
	_, err = c.Do(ctx, req)
	if err == nil {
		return "created", nil
	}
	req.Query = q
	if !rest.IsAlreadyExists(err) || d.object.Name == "" {
		return "", err
	}
	return replace(ctx, c, r, namespace, d, req)
}

func replace(ctx context.Context, c *rest.Client, r rest.Resource, namespace string, d document, req rest.Request) (string, error) {
	var before metav1.PartialObjectMetadata
	path := r.ObjectPath(namespace, d.object.Name)
	if err := c.Into(ctx, rest.Request{Method: http.MethodGet, Path: path}, &before); err != nil {
		return "", err
	}
	if before.DeletionTimestamp != nil {
		return "", fmt.Errorf("%s %q is being deleted; apply again when it is gone", d.object.Kind, d.object.Name)
	}
	req.Method, req.Path = http.MethodPut, path
	var after metav1.PartialObjectMetadata
	if err := c.Into(ctx, req, &after); err != nil {
		return "", err
	}
	if after.ResourceVersion == before.ResourceVersion {
		return "unchanged", nil
	}
	return "configured", nil
}

// readManifests reads every document of every named file.
func readManifests(names []string, stdin io.Reader) ([]document, error) {
	var docs []document
	for _, name := range names {
		files, err := expand(name)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			data, err := readFile(f, stdin)
			if err != nil {
				return nil, err
			}
			ds, err := split(f, data)
			if err != nil {
				return nil, err
			}
			docs = append(docs, ds...)
		}
	}
	if len(docs) == 0 {
		return nil, fmt.Errorf("no objects in %s", strings.Join(names, ", "))
	}
	return docs, nil
}

func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}

// expand turns a directory into the manifests in it.
func expand(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, en := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(en.Name())) && !en.IsDir() {
			files = append(files, filepath.Join(name, en.Name()))
		}
	}
	return files, nil
}

// split cuts a file into its documents and reads which object each one is.
func split(origin string, data []byte) ([]document, error) {
	var docs []document
	r := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer func() { _ = r.Close() }()
	buf := make([]byte, len(data)+1)
	for i := 1; ; i++ {
		n, err := r.Read(buf)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", origin, i, err)
		}
		raw := bytes.Clone(buf[:n])
		if len(bytes.TrimSpace(raw)) == 0 {
			continue
		}
		d := document{origin: origin, raw: raw}
		js, err := yaml.YAMLToJSON(raw)
		if err == nil {
			err = json.Unmarshal(js, &d.object)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", origin, i, err)
		}
		if d.object.Kind != "" {
			docs = append(docs, d)
		} else if string(bytes.TrimSpace(js)) != "null" {
			return nil, fmt.Errorf("%s: document %d: kind: required, for example Pod", origin, i)
		}
	}
}

package manifest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/decode"
)

// Annotations of static pods, as in Kubernetes.
const (
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationSeen   = "kubernetes.io/config.seen"
)

// words are what stands for a source in a pod's annotations and in its UID.
var words = map[podplanev1.Source]struct{ annotation, uid string }{
	podplanev1.Source_SOURCE_FILE: {"file", "file:"},
	podplanev1.Source_SOURCE_HTTP: {"http", "url:"},
}

// MaxBytes is the largest manifest that is read, from a file or from a URL.
const MaxBytes = 10 << 20

// Origin says where a manifest is from.
type Origin struct {
	// Source is SOURCE_FILE or SOURCE_HTTP.
	Source podplanev1.Source
	// Path of the file, or URL.
	Path string
}

// Static makes the pod of a manifest. Its name ends in the node's, its UID is a hash of what the manifest means, of the node and of the
// path or URL: the same manifest is the same pod for every process, another manifest is another pod. Errors say the line.
func Static(from Origin, data []byte, node admission.Node) (*v1.Pod, error) {
	return static(from, from.Path, decode.Input{Data: data, Limit: MaxBytes, RequireKind: true}, node)
}

// static makes a pod of what stands at a place of an origin.
func static(from Origin, place string, in decode.Input, node admission.Node) (*v1.Pod, error) {
	text := in.Data
	if place != from.Path {
		text = nil // lines would be counted from somewhere within the answer
	}
	pod, err := decode.Pod(in)
	if err != nil {
		return nil, located(place, text, err)
	}
	canonical, err := decode.Canonical(in)
	if err != nil {
		return nil, located(place, text, err)
	}
	if pod.Name == "" && pod.GenerateName != "" {
		return nil, fmt.Errorf("%s: %w", place, fault.New(fault.Invalid, "metadata.generateName: a manifest must give its pod a name"))
	}
	if pod.Name != "" {
		pod.Name = fullName(pod.Name, node)
	}
	pod.ResourceVersion = ""
	if from.Source == podplanev1.Source_SOURCE_FILE {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	}
	if err := node.Pod(pod, ""); err != nil {
		return nil, located(place, text, err)
	}
	uid := hash(canonical, node.Name, from)
	pod.UID = types.UID(uid)
	if pod.Annotations == nil {
		pod.Annotations = make(map[string]string, 3)
	}
	pod.Annotations[AnnotationSource], pod.Annotations[AnnotationHash] = words[from.Source].annotation, uid
	return pod, nil
}

func fullName(name string, node admission.Node) string {
	return name + "-" + strings.ToLower(node.Name)
}

func hash(canonical []byte, node string, from Origin) string {
	h := fnv.New128a()
	// Writing to a hash never fails.
	_, _ = h.Write(canonical)
	_, _ = h.Write([]byte("host:" + node + words[from.Source].uid + from.Path))
	return hex.EncodeToString(h.Sum(nil))
}

// located puts the place, and for the first field that is wrong its line, before a message.
func located(place string, data []byte, err error) error {
	where := place
	if f := fault.Fields(err); len(f) > 0 {
		if l := decode.Line(data, f[0].Path); l > 0 {
			where = fmt.Sprintf("%s:%d", place, l)
		}
	} else if at, ok := errors.AsType[*decode.SyntaxError](err); ok {
		where = fmt.Sprintf("%s:%d", place, at.Line())
	}
	return fmt.Errorf("%s: %w", where, err)
}

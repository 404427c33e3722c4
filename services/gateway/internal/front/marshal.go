package front

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// marshaler passes bodies through byte for byte, both ways, and writes everything else as JSON: Kubernetes objects stay what their
// author wrote, and only Podplane's own messages are encoded here. Messages of a stream come one to a line.
type marshaler struct {
	// contentType is what a request's body is said to be.
	contentType string
}

var (
	_ runtime.Marshaler = marshaler{}
	_ runtime.Delimited = marshaler{}
)

var encoding = protojson.MarshalOptions{EmitDefaultValues: true}

// Marshal encodes an answer.
func (m marshaler) Marshal(v any) ([]byte, error) {
	switch x := v.(type) {
	case *httpbody.HttpBody:
		return x.GetData(), nil
	case proto.Message:
		return marshal(x, func(b *bytes.Buffer, raw []byte) error { return json.Indent(b, raw, "", "  ") })
	case map[string]any: // grpc-gateway's frame around a message of a stream
		if msg, ok := x["result"].(proto.Message); ok {
			return marshal(msg, json.Compact)
		}
	case map[string]proto.Message: // and around its error, which the response writer replaces
		return nil, nil
	}
	return json.Marshal(v)
}

// marshal writes a message and a newline. protojson varies its blanks on purpose; layout puts them where they belong.
func marshal(msg proto.Message, layout func(*bytes.Buffer, []byte) error) ([]byte, error) {
	raw, err := encoding.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", msg.ProtoReflect().Descriptor().FullName(), err)
	}
	var b bytes.Buffer
	if err := layout(&b, raw); err != nil {
		return nil, fmt.Errorf("lay out %s: %w", msg.ProtoReflect().Descriptor().FullName(), err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// Unmarshal fills a body.
func (m marshaler) Unmarshal(data []byte, v any) error {
	body, ok := v.(**httpbody.HttpBody)
	if !ok {
		return fmt.Errorf("a request's body can't fill a %T", v)
	}
	*body = &httpbody.HttpBody{ContentType: m.contentType, Data: data}
	return nil
}

// NewDecoder reads the whole body, which is bounded long before. No body is io.EOF, as grpc-gateway expects.
func (m marshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		if len(data) == 0 {
			return io.EOF
		}
		return m.Unmarshal(data, v)
	})
}

// NewEncoder writes what Marshal makes.
func (m marshaler) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		out, err := m.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(out)
		return err
	})
}

// ContentType is the body's own, or JSON.
func (m marshaler) ContentType(v any) string {
	if body, ok := v.(*httpbody.HttpBody); ok && body.GetContentType() != "" {
		return body.GetContentType()
	}
	return jsonType
}

// Delimiter is nothing: bodies bring their own newlines.
func (m marshaler) Delimiter() []byte { return []byte{} }

var errNoRoute = errors.New("the server could not find the requested resource")

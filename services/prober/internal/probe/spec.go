package probe

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NewSpec makes the spec of a container's probe. What is wrong with it is in its Err: it is told each time that the
// probe is due, as it is about the pod and not about this moment.
func NewSpec(p *corev1.Probe, c *corev1.Container) *Spec {
	s := &Spec{Timeout: max(time.Duration(p.TimeoutSeconds)*time.Second, time.Second)}
	var err error
	switch {
	case p.Exec != nil:
		s.Exec = expand(p.Exec.Command, c.Env)
		if len(s.Exec) == 0 {
			err = fmt.Errorf("the exec probe of container %q has no command", c.Name)
		}
	case p.HTTPGet != nil:
		h := &HTTP{Scheme: or(string(p.HTTPGet.Scheme), "http"), Host: p.HTTPGet.Host, Path: or(p.HTTPGet.Path, "/"), Header: http.Header{}}
		for _, header := range p.HTTPGet.HTTPHeaders {
			h.Header.Add(header.Name, header.Value)
		}
		h.Port, err = port(p.HTTPGet.Port, c)
		s.HTTP = h
	case p.TCPSocket != nil:
		s.TCP = &TCP{Host: p.TCPSocket.Host}
		s.TCP.Port, err = port(p.TCPSocket.Port, c)
	case p.GRPC != nil:
		s.GRPC = &GRPC{Port: int(p.GRPC.Port)}
		if p.GRPC.Service != nil {
			s.GRPC.Service = *p.GRPC.Service
		}
	default:
		err = fmt.Errorf("the probe of container %q has no handler", c.Name)
	}
	s.Err = err
	return s
}

func port(p intstr.IntOrString, c *corev1.Container) (int, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				n = int(cp.ContainerPort)
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("container %q has no port %q", c.Name, p.String())
	}
	return n, nil
}

// expand replaces $(NAME) by the value of the container's variable of that name, where the pod's spec gives one.
// $$(NAME) stands for $(NAME); a name that is not known stays as it is.
func expand(command []string, env []corev1.EnvVar) []string {
	values := map[string]string{}
	for _, e := range env {
		if e.ValueFrom == nil {
			values[e.Name] = expandOne(e.Value, values)
		}
	}
	out := make([]string, len(command))
	for i, arg := range command {
		out[i] = expandOne(arg, values)
	}
	return out
}

func expandOne(s string, values map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			b.WriteByte('$')
			s = s[2:]
		case s[1] != '(' || end < 0:
			b.WriteByte('$')
			s = s[1:]
		default:
			if v, ok := values[s[2:end]]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[:end+1])
			}
			s = s[end+1:]
		}
	}
}

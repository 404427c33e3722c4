package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type probeKind int

const (
	liveness probeKind = iota
	startup
	readiness
)

func validateProbe(pr *v1.Probe, kind probeKind, p *field.Path) field.ErrorList {
	if pr == nil {
		return nil
	}
	list := validateProbeHandler(&pr.ProbeHandler, p)
	atLeast := func(name string, value, least int32) {
		if value < least {
			list = append(list, field.Invalid(p.Child(name), value, fmt.Sprintf("must be greater than or equal to %d", least)))
		}
	}
	atLeast("initialDelaySeconds", pr.InitialDelaySeconds, 0)
	atLeast("timeoutSeconds", pr.TimeoutSeconds, 1)
	atLeast("periodSeconds", pr.PeriodSeconds, 1)
	atLeast("successThreshold", pr.SuccessThreshold, 1)
	atLeast("failureThreshold", pr.FailureThreshold, 1)
	if kind != readiness && pr.SuccessThreshold > 1 {
		list = append(list, field.Invalid(p.Child("successThreshold"), pr.SuccessThreshold, "must be 1"))
	}
	if g := pr.TerminationGracePeriodSeconds; g != nil {
		at := p.Child("terminationGracePeriodSeconds")
		switch {
		case kind == readiness:
			list = append(list, field.Invalid(at, *g, "must not be set for readinessProbes"))
		case *g < 1:
			list = append(list, field.Invalid(at, *g, "must be greater than 0"))
		}
	}
	return list
}

func validateProbeHandler(h *v1.ProbeHandler, p *field.Path) field.ErrorList {
	var list field.ErrorList
	var n handlerCount
	if h.Exec != nil {
		list = append(list, n.next(p.Child("exec"), validateExec(h.Exec, p.Child("exec")))...)
	}
	if h.HTTPGet != nil {
		list = append(list, n.next(p.Child("httpGet"), validateHTTPGet(h.HTTPGet, p.Child("httpGet")))...)
	}
	if h.TCPSocket != nil {
		at := p.Child("tcpSocket")
		list = append(list, n.next(at, validatePort(h.TCPSocket.Port, at.Child("port")))...)
	}
	if h.GRPC != nil {
		at := p.Child("grpc")
		list = append(list, n.next(at, invalidIf(at.Child("port"), "", validation.IsValidPortNum(int(h.GRPC.Port))))...)
	}
	if n == 0 {
		list = append(list, field.Required(p, "must specify a handler type: exec, httpGet, tcpSocket or grpc"))
	}
	return list
}

// handlerCount refuses every handler but the first.
type handlerCount int

func (n *handlerCount) next(p *field.Path, found field.ErrorList) field.ErrorList {
	*n++
	if *n > 1 {
		return field.ErrorList{field.Forbidden(p, "may not specify more than 1 handler type")}
	}
	return found
}

func validateExec(e *v1.ExecAction, p *field.Path) field.ErrorList {
	if len(e.Command) == 0 {
		return field.ErrorList{field.Required(p.Child("command"), "must have at least one word")}
	}
	return nil
}

func validateHTTPGet(g *v1.HTTPGetAction, p *field.Path) field.ErrorList {
	var list field.ErrorList
	if g.Path == "" {
		list = append(list, field.Required(p.Child("path"), "must not be empty"))
	}
	list = append(list, validatePort(g.Port, p.Child("port"))...)
	list = append(list, enum(p.Child("scheme"), g.Scheme, v1.URISchemeHTTP, v1.URISchemeHTTPS)...)
	for i, h := range g.HTTPHeaders {
		list = append(list, invalidIf(p.Child("httpHeaders").Index(i).Child("name"), h.Name, validation.IsHTTPHeaderName(h.Name))...)
		if strings.ContainsAny(h.Value, "\r\n") {
			list = append(list, field.Invalid(p.Child("httpHeaders").Index(i).Child("value"), "", "must not contain line breaks"))
		}
	}
	return list
}

func validatePort(port intstr.IntOrString, p *field.Path) field.ErrorList {
	if port.Type == intstr.Int {
		return invalidIf(p, "", validation.IsValidPortNum(port.IntValue()))
	}
	return invalidIf(p, port.StrVal, validation.IsValidPortName(port.StrVal))
}

func validateLifecycle(l *v1.Lifecycle, s *v1.PodSpec, p *field.Path) field.ErrorList {
	if l == nil {
		return nil
	}
	grace := s.TerminationGracePeriodSeconds
	list := validateHook(l.PostStart, grace, p.Child("postStart"))
	list = append(list, validateHook(l.PreStop, grace, p.Child("preStop"))...)
	if l.StopSignal != nil {
		at := p.Child("stopSignal")
		if s.OS == nil || s.OS.Name != v1.Linux {
			list = append(list, field.Forbidden(at, "may not be set without `spec.os.name` being set to linux"))
		}
		if !knownSignal(*l.StopSignal) {
			list = append(list, field.Invalid(at, *l.StopSignal, "must be the name of a signal, such as SIGTERM, SIGUSR1 or SIGRTMIN+1"))
		}
	}
	return list
}

func validateHook(h *v1.LifecycleHandler, grace *int64, p *field.Path) field.ErrorList {
	if h == nil {
		return nil
	}
	var list field.ErrorList
	var n handlerCount
	if h.Exec != nil {
		list = append(list, n.next(p.Child("exec"), validateExec(h.Exec, p.Child("exec")))...)
	}
	if h.HTTPGet != nil {
		list = append(list, n.next(p.Child("httpGet"), validateHTTPGet(h.HTTPGet, p.Child("httpGet")))...)
	}
	if h.TCPSocket != nil {
		list = append(list, n.next(p.Child("tcpSocket"), field.ErrorList{notHere(p.Child("tcpSocket"), "tcpSocket hooks", "exec", "httpGet", "sleep")})...)
	}
	if s := h.Sleep; s != nil {
		at := p.Child("sleep")
		var found field.ErrorList
		if s.Seconds < 0 || (grace != nil && s.Seconds > *grace) {
			found = field.ErrorList{field.Invalid(at.Child("seconds"), s.Seconds, "must be at least 0 and at most terminationGracePeriodSeconds")}
		}
		list = append(list, n.next(at, found)...)
	}
	if n == 0 {
		list = append(list, field.Required(p, "must specify a handler type: exec, httpGet or sleep"))
	}
	return list
}

// signals are Linux' names; the real-time ones have a number behind.
var signals = strings.Fields("ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX")

func knownSignal(s v1.Signal) bool {
	name, ok := strings.CutPrefix(string(s), "SIG")
	if !ok {
		return false
	}
	for _, realTime := range []struct {
		prefix string
		most   int
	}{{"RTMIN+", 15}, {"RTMAX-", 14}} {
		if number, ok := strings.CutPrefix(name, realTime.prefix); ok {
			n, err := strconv.Atoi(number)
			return err == nil && n >= 1 && n <= realTime.most && strconv.Itoa(n) == number
		}
	}
	return slices.Contains(signals, name)
}

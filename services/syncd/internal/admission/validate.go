package admission

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate checks a defaulted pod.
func Validate(pod *v1.Pod) field.ErrorList {
	list := validateMeta(pod)
	p := field.NewPath("spec")
	s := &pod.Spec
	list = append(list, unsupported(s, p)...)
	volumes, found := validateVolumes(s.Volumes, p.Child("volumes"))
	list = append(list, found...)
	list = append(list, validateContainers(s, volumes, p)...)
	list = append(list, validatePodResources(pod, p)...)
	list = append(list, validatePolicies(s, p)...)
	list = append(list, validateNames(s, p)...)
	list = append(list, validateDNS(s, p)...)
	list = append(list, validateScheduling(s, p)...)
	list = append(list, validateGates(s, p)...)
	return append(list, validatePodSecurity(s, p)...)
}

func validateMeta(pod *v1.Pod) field.ErrorList {
	p := field.NewPath("metadata")
	list := apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, p)
	if len(pod.Finalizers) > 0 {
		list = append(list, notHere(p.Child("finalizers"), "finalizers on pods"))
	}
	return list
}

func validatePolicies(s *v1.PodSpec, p *field.Path) field.ErrorList {
	list := enum(p.Child("restartPolicy"), s.RestartPolicy, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)
	if g := s.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		list = append(list, field.Invalid(p.Child("terminationGracePeriodSeconds"), *g, "must be greater than or equal to 0"))
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		list = append(list, field.Invalid(p.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if c := s.PriorityClassName; c != "" && c != priorityNode && c != priorityOthers {
		list = append(list, field.NotSupported(p.Child("priorityClassName"), c, []string{priorityNode, priorityOthers}))
	}
	if s.PreemptionPolicy != nil {
		list = append(list, enum(p.Child("preemptionPolicy"), *s.PreemptionPolicy, v1.PreemptLowerPriority, v1.PreemptNever)...)
	}
	if s.OS != nil {
		list = append(list, enum(p.Child("os", "name"), s.OS.Name, v1.Linux)...)
	}
	return list
}

// maxKernelHostname is what Linux has room for.
const maxKernelHostname = 64

func validateNames(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	label := func(at *field.Path, value string) {
		if value != "" {
			list = append(list, invalidIf(at, value, validation.IsDNS1123Label(value))...)
		}
	}
	label(p.Child("hostname"), s.Hostname)
	label(p.Child("subdomain"), s.Subdomain)
	if o := s.HostnameOverride; o != nil {
		at := p.Child("hostnameOverride")
		list = append(list, invalidIf(at, *o, validation.IsDNS1123Subdomain(*o))...)
		if len(*o) > maxKernelHostname {
			list = append(list, field.TooLong(at, *o, maxKernelHostname))
		}
		if s.HostNetwork {
			list = append(list, field.Forbidden(at, "may not be set when `hostNetwork` is true"))
		}
		if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN {
			list = append(list, field.Forbidden(at, "may not be set when `setHostnameAsFQDN` is true"))
		}
	}
	subdomain := func(at *field.Path, value string) {
		list = append(list, invalidIf(at, value, validation.IsDNS1123Subdomain(value))...)
	}
	if s.ServiceAccountName != "" {
		subdomain(p.Child("serviceAccountName"), s.ServiceAccountName)
	}
	for i, r := range s.ImagePullSecrets {
		subdomain(p.Child("imagePullSecrets").Index(i).Child("name"), r.Name)
	}
	for i, a := range s.HostAliases {
		at := p.Child("hostAliases").Index(i)
		list = append(list, validateIP(at.Child("ip"), a.IP)...)
		for j, h := range a.Hostnames {
			subdomain(at.Child("hostnames").Index(j), h)
		}
	}
	return list
}

func validateIP(p *field.Path, ip string) field.ErrorList {
	if _, err := netip.ParseAddr(ip); err != nil {
		return field.ErrorList{field.Invalid(p, ip, "must be an IPv4 or IPv6 address")}
	}
	return nil
}

const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

func validateDNS(s *v1.PodSpec, p *field.Path) field.ErrorList {
	list := enum(p.Child("dnsPolicy"), s.DNSPolicy, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSDefault, v1.DNSNone)
	c, at := s.DNSConfig, p.Child("dnsConfig")
	if s.DNSPolicy == v1.DNSNone && (c == nil || len(c.Nameservers) == 0) {
		list = append(list, field.Required(at.Child("nameservers"), "at least one is needed when dnsPolicy is None"))
	}
	if c == nil {
		return list
	}
	if len(c.Nameservers) > maxNameservers {
		list = append(list, field.TooMany(at.Child("nameservers"), len(c.Nameservers), maxNameservers))
	}
	for i, n := range c.Nameservers {
		list = append(list, validateIP(at.Child("nameservers").Index(i), n)...)
	}
	if len(c.Searches) > maxSearches {
		list = append(list, field.TooMany(at.Child("searches"), len(c.Searches), maxSearches))
	}
	if n := len(strings.Join(c.Searches, " ")); n > maxSearchChars {
		list = append(list, field.Invalid(at.Child("searches"), n, fmt.Sprintf("must not have more than %d characters together", maxSearchChars)))
	}
	for i, d := range c.Searches {
		if d != "." {
			list = append(list, invalidIf(at.Child("searches").Index(i), d, validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(d, ".")))...)
		}
	}
	for i, o := range c.Options {
		if o.Name == "" {
			list = append(list, field.Required(at.Child("options").Index(i), "must not be empty"))
		}
	}
	return list
}

func validateGates(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	seen := make(map[v1.PodConditionType]bool)
	for i, g := range s.ReadinessGates {
		at := p.Child("readinessGates").Index(i).Child("conditionType")
		list = append(list, invalidIf(at, string(g.ConditionType), validation.IsQualifiedName(string(g.ConditionType)))...)
		if seen[g.ConditionType] {
			list = append(list, field.Duplicate(at, g.ConditionType))
		}
		seen[g.ConditionType] = true
	}
	return list
}

func validateScheduling(s *v1.PodSpec, p *field.Path) field.ErrorList {
	list := metavalidation.ValidateLabels(s.NodeSelector, p.Child("nodeSelector"))
	for i, t := range s.Tolerations {
		list = append(list, validateToleration(t, p.Child("tolerations").Index(i))...)
	}
	return list
}

func validateToleration(t v1.Toleration, p *field.Path) field.ErrorList {
	var list field.ErrorList
	if t.Key != "" {
		list = append(list, invalidIf(p.Child("key"), t.Key, validation.IsQualifiedName(t.Key))...)
	} else if t.Operator != v1.TolerationOpExists {
		list = append(list, field.Invalid(p.Child("operator"), t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	if t.TolerationSeconds != nil && t.Effect != v1.TaintEffectNoExecute {
		list = append(list, field.Invalid(p.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	switch t.Operator {
	case v1.TolerationOpExists:
		if t.Value != "" {
			list = append(list, field.Invalid(p.Child("value"), t.Value, "value must be empty when `operator` is 'Exists'"))
		}
	case v1.TolerationOpEqual, "":
		list = append(list, invalidIf(p.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	default:
		list = append(list, field.NotSupported(p.Child("operator"), t.Operator, []v1.TolerationOperator{v1.TolerationOpEqual, v1.TolerationOpExists}))
	}
	if t.Effect != "" {
		list = append(list, enum(p.Child("effect"), t.Effect, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute)...)
	}
	return list
}

// unsupported are the parts of a pod's specification that this node does not act on: taking them would be a promise not kept.
func unsupported(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for _, u := range []struct {
		is    bool
		field string
		what  string
	}{
		{len(s.EphemeralContainers) > 0, "ephemeralContainers", "ephemeral containers may not be set when a pod is created"},
		{len(s.ResourceClaims) > 0, "resourceClaims", "dynamic resource allocation"},
		{len(s.SchedulingGates) > 0, "schedulingGates", "scheduling gates, as there is no scheduler that removes them"},
	} {
		if u.is {
			list = append(list, notHere(p.Child(u.field), u.what))
		}
	}
	return list
}

func invalidIf(p *field.Path, value string, msgs []string) field.ErrorList {
	var list field.ErrorList
	for _, m := range msgs {
		list = append(list, field.Invalid(p, value, m))
	}
	return list
}

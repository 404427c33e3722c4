package admission_test

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/decode"
)

var node = admission.Node{Name: "node-1", Labels: map[string]string{"disk": "ssd"}}

// podOf reads a pod from YAML; a spec without containers gets one.
func podOf(t testing.TB, spec string) *v1.Pod {
	t.Helper()
	if !strings.Contains("\n"+spec, "\ncontainers:") {
		spec += "\ncontainers: [{name: a, image: b}]"
	}
	spec = "  " + strings.ReplaceAll(spec, "\n", "\n  ")
	pod, err := decode.Pod(decode.Input{ContentType: "application/yaml", Data: []byte("metadata: {name: web}\nspec:\n" + spec + "\n")})
	if err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return pod
}

func TestDefaults(t *testing.T) {
	pod := podOf(t, `hostNetwork: true
volumes: [{name: e}, {name: c, configMap: {name: x}}, {name: s, secret: {secretName: x}}, {name: h, hostPath: {path: /x}}, {name: i, image: {reference: b}}, {name: j, image: {reference: "b:1"}}]
containers:
- name: a
  image: registry:5000/b
  ports: [{containerPort: 80}]
  resources: {limits: {cpu: 1, memory: 64Mi}, requests: {cpu: 500m}}
  env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  livenessProbe: {httpGet: {port: 80}}
  readinessProbe: {grpc: {port: 81}, periodSeconds: 3}
  lifecycle: {preStop: {httpGet: {port: 80}}}
- {name: c, image: "b:latest"}
- {name: d, image: "b:1"}
- {name: e, image: "b@sha256:0000000000000000000000000000000000000000000000000000000000000000"}`)
	if err := node.Pod(pod, "ns"); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"namespace":"ns"`, `"nodeName":"node-1"`, `"restartPolicy":"Always"`, `"dnsPolicy":"ClusterFirst"`, `"terminationGracePeriodSeconds":30`,
		`"securityContext":{}`, `"schedulerName":"default-scheduler"`, `"enableServiceLinks":true`, `{"name":"e","emptyDir":{}}`,
		`"configMap":{"name":"x","defaultMode":420}`, `"secret":{"secretName":"x","defaultMode":420}`, `"hostPath":{"path":"/x","type":""}`,
		`"image":{"reference":"b","pullPolicy":"Always"}`, `"image":{"reference":"b:1","pullPolicy":"IfNotPresent"}`,
		`{"hostPort":80,"containerPort":80,"protocol":"TCP"}`, `"requests":{"cpu":"500m","memory":"64Mi"}`, `"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}`,
		`"livenessProbe":{"httpGet":{"path":"/","port":80,"scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3}`,
		`"readinessProbe":{"grpc":{"port":81,"service":""},"timeoutSeconds":1,"periodSeconds":3,"successThreshold":1,"failureThreshold":3}`,
		`"preStop":{"httpGet":{"path":"/","port":80,"scheme":"HTTP"}}`, `"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File"`,
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	for i, want := range []v1.PullPolicy{v1.PullAlways, v1.PullAlways, v1.PullIfNotPresent, v1.PullIfNotPresent} {
		if p := pod.Spec.Containers[i].ImagePullPolicy; p != want {
			t.Errorf("%s: got %s, want %s", pod.Spec.Containers[i].Image, p, want)
		}
	}
}

// container is a pod with one container of these further fields.
func container(fields string) string { return "containers: [{name: a, image: b, " + fields + "}]" }

func TestRules(t *testing.T) {
	for _, c := range []struct{ spec, field, words string }{
		{"containers: []", "spec.containers", "at least one"},
		{"containers: [{name: A, image: b}]", "spec.containers[0].name", "lower case"},
		{"containers: [{name: a, image: b}, {name: a, image: b}]", "spec.containers[1].name", "Duplicate"},
		{"containers: [{name: a}]", "spec.containers[0].image", "Required"},
		{`containers: [{name: a, image: " b"}]`, "spec.containers[0].image", "whitespace"},
		{container("imagePullPolicy: Sometimes"), "spec.containers[0].imagePullPolicy", `"Always", "IfNotPresent", "Never"`},
		{container("terminationMessagePolicy: X"), "spec.containers[0].terminationMessagePolicy", "File"},
		{container("restartPolicy: Often"), "spec.containers[0].restartPolicy", `"Always", "OnFailure", "Never"`},
		{container("restartPolicyRules: [{action: Restart, exitCodes: {operator: In}}]"), "spec.containers[0].restartPolicy", "must specify restartPolicy"},
		{container("restartPolicy: Never, restartPolicyRules: [{action: Stop, exitCodes: {operator: Of}}]"), "spec.containers[0].restartPolicyRules[0].action", "RestartAllContainers"},
		{container("restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: Of}}]"), "spec.containers[0].restartPolicyRules[0].exitCodes.operator", "NotIn"},
		{container("restartPolicy: Never, restartPolicyRules: [{action: Restart}]"), "spec.containers[0].restartPolicyRules[0].exitCodes", "must be specified"},
		{container("lifecycle: {stopSignal: SIGTERM}"), "spec.containers[0].lifecycle.stopSignal", "spec.os.name"},
		{"os: {name: linux}\n" + container("lifecycle: {stopSignal: SIGRTMIN+16}"), "spec.containers[0].lifecycle.stopSignal", "name of a signal"},
		{"hostnameOverride: a_b", "spec.hostnameOverride", "lower case"},
		{"hostnameOverride: a\nhostNetwork: true", "spec.hostnameOverride", "hostNetwork"},
		{"hostnameOverride: a\nsetHostnameAsFQDN: true", "spec.hostnameOverride", "setHostnameAsFQDN"},
		{"restartPolicy: Often", "spec.restartPolicy", `"Always", "OnFailure", "Never"`},
		{"dnsPolicy: X", "spec.dnsPolicy", "ClusterFirst"},
		{"dnsPolicy: None", "spec.dnsConfig.nameservers", "at least one"},
		{"dnsConfig: {nameservers: [x]}", "spec.dnsConfig.nameservers[0]", "IPv4"},
		{"dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}", "spec.dnsConfig.nameservers", "at most 3"},
		{"dnsConfig: {searches: [A_]}", "spec.dnsConfig.searches[0]", "subdomain"},
		{"dnsConfig: {options: [{value: x}]}", "spec.dnsConfig.options[0]", "Required"},
		{"hostAliases: [{ip: x, hostnames: [a]}]", "spec.hostAliases[0].ip", "IPv4"},
		{"hostAliases: [{ip: 1.1.1.1, hostnames: [A]}]", "spec.hostAliases[0].hostnames[0]", "subdomain"},
		{"hostname: A", "spec.hostname", "lower case"},
		{"subdomain: a.b", "spec.subdomain", "dots"},
		{"serviceAccountName: A", "spec.serviceAccountName", "lower case"},
		{"imagePullSecrets: [{name: A}]", "spec.imagePullSecrets[0].name", "lower case"},
		{"activeDeadlineSeconds: 0", "spec.activeDeadlineSeconds", "between 1 and 2147483647"},
		{"terminationGracePeriodSeconds: -1", "spec.terminationGracePeriodSeconds", "greater than or equal to 0"},
		{"priorityClassName: x", "spec.priorityClassName", "system-node-critical"},
		{"os: {name: windows}", "spec.os.name", "linux"},
		{"nodeName: other", "spec.nodeName", "must be this node"},
		{"nodeSelector: {a: '?'}", "spec.nodeSelector", "valid label"},
		{"tolerations: [{operator: Equal}]", "spec.tolerations[0].operator", "Exists"},
		{"tolerations: [{key: a, operator: X}]", "spec.tolerations[0].operator", "Equal"},
		{"tolerations: [{key: a, operator: Exists, value: x}]", "spec.tolerations[0].value", "must be empty"},
		{"tolerations: [{key: a, effect: X}]", "spec.tolerations[0].effect", "NoSchedule"},
		{"tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 1}]", "spec.tolerations[0].effect", "NoExecute"},

		{"ephemeralContainers: [{name: e, image: b}]", "spec.ephemeralContainers", "may not be set when a pod is created"},
		{"runtimeClassName: x", "spec.runtimeClassName", "Not found"},
		{"hostUsers: false\nhostNetwork: true", "spec.hostNetwork", "hostUsers"},
		{"readinessGates: [{conditionType: a}, {conditionType: a}]", "spec.readinessGates[1].conditionType", "Duplicate"},
		{"readinessGates: [{conditionType: '?'}]", "spec.readinessGates[0].conditionType", "alphanumeric"},
		{"schedulingGates: [{name: x}]", "spec.schedulingGates", "not supported by this node"},
		{"resourceClaims: [{name: x}]", "spec.resourceClaims", "not supported by this node"},
		{"overhead: {cpu: 1}", "spec.overhead", "runtime class"},
		{"resources: {limits: {ephemeral-storage: 1Gi}}", "spec.resources.limits[ephemeral-storage]", "cpu"},
		{"resources: {claims: [{name: x}]}", "spec.resources.claims", "not supported by this node"},
		{"resources: {limits: {cpu: 1}, requests: {cpu: 2}}", "spec.resources.requests[cpu]", "limit of 1"},
		{"resources: {limits: {hugepages-2Mi: 2Mi}, requests: {hugepages-2Mi: 4Mi}}", "spec.resources.requests[hugepages-2Mi]", "limit of 2Mi"},
		{"resources: {requests: {cpu: 1}}\n" + container("resources: {requests: {cpu: 2}}"), "spec.resources.requests[cpu]", "aggregate container requests of 2"},
		{"resources: {limits: {memory: 1Gi}}\n" + container("resources: {limits: {memory: 2Gi}}"), "spec.resources.requests[memory]", "limit of 1Gi"},
		{"resources: {limits: {cpu: 1}}\n" + container("resources: {requests: {cpu: 1}, limits: {cpu: 2}}"), "spec.containers[0].resources.limits[cpu]", "pod limits of 1"},

		{"volumes: [{name: A}]", "spec.volumes[0].name", "lower case"},
		{"volumes: [{name: a}, {name: a}]", "spec.volumes[1].name", "Duplicate"},
		{"volumes: [{name: a, emptyDir: {}, hostPath: {path: /x}}]", "spec.volumes[0].emptyDir", "more than 1 volume type"},
		{"volumes: [{name: a, nfs: {server: x, path: /x}}]", "spec.volumes[0].nfs", "supported: emptyDir, hostPath, configMap, secret"},
		{"volumes: [{name: a, persistentVolumeClaim: {claimName: x}}]", "spec.volumes[0].persistentVolumeClaim", "supported: emptyDir"},
		{"volumes: [{name: a, emptyDir: {medium: Tape}}]", "spec.volumes[0].emptyDir.medium", "Memory"},
		{"volumes: [{name: a, emptyDir: {sizeLimit: -1}}]", "spec.volumes[0].emptyDir.sizeLimit", "greater than or equal to 0"},
		{"volumes: [{name: a, hostPath: {path: ''}}]", "spec.volumes[0].hostPath.path", "Required"},
		{"volumes: [{name: a, hostPath: {path: x}}]", "spec.volumes[0].hostPath.path", "absolute"},
		{"volumes: [{name: a, hostPath: {path: /a/../b}}]", "spec.volumes[0].hostPath.path", "'..'"},
		{"volumes: [{name: a, hostPath: {path: /a, type: Door}}]", "spec.volumes[0].hostPath.type", "Directory"},
		{"volumes: [{name: a, configMap: {}}]", "spec.volumes[0].configMap.name", "Required"},
		{"volumes: [{name: a, configMap: {name: A}}]", "spec.volumes[0].configMap.name", "lower case"},
		{"volumes: [{name: a, secret: {secretName: a, defaultMode: 512}}]", "spec.volumes[0].secret.defaultMode", "0777"},
		{"volumes: [{name: a, secret: {secretName: a, items: [{path: x}]}}]", "spec.volumes[0].secret.items[0].key", "Required"},
		{"volumes: [{name: a, secret: {secretName: a, items: [{key: k, path: ../x}]}}]", "spec.volumes[0].secret.items[0].path", "'..'"},
		{"volumes: [{name: a, secret: {secretName: a, items: [{key: k, path: /x}]}}]", "spec.volumes[0].secret.items[0].path", "relative"},
		{container("volumeMounts: [{name: x, mountPath: /x}]"), "spec.containers[0].volumeMounts[0].name", "Not found"},
		{"volumes: [{name: v}]\n" + container("volumeMounts: [{name: v, mountPath: ''}]"), "spec.containers[0].volumeMounts[0].mountPath", "Required"},
		{"volumes: [{name: v}]\n" + container("volumeMounts: [{name: v, mountPath: 'a:b'}]"), "spec.containers[0].volumeMounts[0].mountPath", "':'"},
		{"volumes: [{name: v}]\n" + container("volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /a}]"), "spec.containers[0].volumeMounts[1].mountPath", "unique"},
		{"volumes: [{name: v}]\n" + container("volumeMounts: [{name: v, mountPath: /a, subPath: x}]"), "spec.containers[0].volumeMounts[0].subPath", "not supported"},
		{"volumes: [{name: v}]\n" + container("volumeMounts: [{name: v, mountPath: /a, mountPropagation: Bidirectional}]"), "spec.containers[0].volumeMounts[0].mountPropagation", "privileged"},
		{"volumes: [{name: v}]\n" + container("volumeMounts: [{name: v, mountPath: /a, recursiveReadOnly: Enabled}]"), "spec.containers[0].volumeMounts[0].recursiveReadOnly", "readOnly"},
		{"volumes: [{name: a, image: {}}]", "spec.volumes[0].image.reference", "Required"},
		{"volumes: [{name: a, image: {reference: ' b'}}]", "spec.volumes[0].image.reference", "whitespace"},
		{"volumes: [{name: a, image: {reference: b, pullPolicy: Often}}]", "spec.volumes[0].image.pullPolicy", "IfNotPresent"},
		{"volumes: [{name: v, image: {reference: b}}]\n" + container("volumeMounts: [{name: v, mountPath: /a, subPath: ../x}]"), "spec.containers[0].volumeMounts[0].subPath", "'..'"},
		{"volumes: [{name: v, image: {reference: b}}]\n" + container("volumeMounts: [{name: v, mountPath: /a, subPath: /x}]"), "spec.containers[0].volumeMounts[0].subPath", "relative"},
		{"volumes: [{name: v, image: {reference: b}}]\n" + container("volumeMounts: [{name: v, mountPath: /a, subPathExpr: x/../y}]"), "spec.containers[0].volumeMounts[0].subPathExpr", "'..'"},
		{"volumes: [{name: v, image: {reference: b}}]\n" + container("volumeMounts: [{name: v, mountPath: /a, subPath: x, subPathExpr: x}]"), "spec.containers[0].volumeMounts[0].subPathExpr", "mutually exclusive"},
		{container("volumeDevices: [{name: x, devicePath: /x}]"), "spec.containers[0].volumeDevices[0]", "not supported"},

		{container("ports: [{hostPort: 1}]"), "spec.containers[0].ports[0].containerPort", "Required"},
		{container("ports: [{containerPort: 70000}]"), "spec.containers[0].ports[0].containerPort", "65535"},
		{container("ports: [{containerPort: 1, hostPort: 70000}]"), "spec.containers[0].ports[0].hostPort", "65535"},
		{container("ports: [{containerPort: 1, protocol: X}]"), "spec.containers[0].ports[0].protocol", "TCP"},
		{container("ports: [{containerPort: 1, hostIP: X}]"), "spec.containers[0].ports[0].hostIP", "IPv4"},
		{container("ports: [{containerPort: 1, name: A_}]"), "spec.containers[0].ports[0].name", "alpha-numeric"},
		{container("ports: [{containerPort: 1, name: a}, {containerPort: 2, name: a}]"), "spec.containers[0].ports[1].name", "Duplicate"},
		{container("ports: [{containerPort: 1, hostPort: 5}, {containerPort: 2, hostPort: 5}]"), "spec.containers[0].ports[1].hostPort", "Duplicate"},
		{"hostNetwork: true\n" + container("ports: [{containerPort: 1, hostPort: 5}]"), "spec.containers[0].ports[0].hostPort", "must match"},

		{container("env: [{name: ''}]"), "spec.containers[0].env[0].name", "Required"},
		{container("env: [{name: 'a=b'}]"), "spec.containers[0].env[0].name", "="},
		{container("env: [{name: a, valueFrom: {}}]"), "spec.containers[0].env[0].valueFrom", "must specify one of"},
		{container("env: [{name: a, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"), "spec.containers[0].env[0].valueFrom", "`value` is not empty"},
		{container("env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.name}, secretKeyRef: {name: a, key: b}}}]"), "spec.containers[0].env[0].valueFrom", "more than one"},
		{container("env: [{name: a, valueFrom: {fieldRef: {fieldPath: spec.x}}}]"), "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "status.podIP"},
		{container("env: [{name: a, valueFrom: {fieldRef: {}}}]"), "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "Required"},
		{container(`env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.labels['/']"}}}]`), "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath", "non-empty"},
		{container("env: [{name: a, valueFrom: {resourceFieldRef: {resource: x}}}]"), "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource", "limits.cpu"},
		{container("env: [{name: a, valueFrom: {secretKeyRef: {name: a}}}]"), "spec.containers[0].env[0].valueFrom.secretKeyRef.key", "Required"},
		{container("env: [{name: a, valueFrom: {configMapKeyRef: {name: a, key: 'a/b'}}}]"), "spec.containers[0].env[0].valueFrom.configMapKeyRef.key", "alphanumeric"},
		{container("env: [{name: a, valueFrom: {fileKeyRef: {volumeName: a, path: b, key: c}}}]"), "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName", "Not found"},
		{container("envFrom: [{}]"), "spec.containers[0].envFrom[0]", "must specify one of"},
		{container("envFrom: [{configMapRef: {name: a}, secretRef: {name: a}}]"), "spec.containers[0].envFrom[0]", "more than one"},
		{container("envFrom: [{secretRef: {name: A}}]"), "spec.containers[0].envFrom[0].secretRef.name", "lower case"},

		{container("livenessProbe: {}"), "spec.containers[0].livenessProbe", "must specify a handler"},
		{container("livenessProbe: {exec: {command: [a]}, tcpSocket: {port: 1}}"), "spec.containers[0].livenessProbe.tcpSocket", "more than 1 handler"},
		{container("livenessProbe: {exec: {command: []}}"), "spec.containers[0].livenessProbe.exec.command", "Required"},
		{container("livenessProbe: {exec: {command: [a]}, successThreshold: 2}"), "spec.containers[0].livenessProbe.successThreshold", "must be 1"},
		{container("startupProbe: {exec: {command: [a]}, successThreshold: 2}"), "spec.containers[0].startupProbe.successThreshold", "must be 1"},
		{container("livenessProbe: {exec: {command: [a]}, periodSeconds: -1}"), "spec.containers[0].livenessProbe.periodSeconds", "greater than or equal to 1"},
		{container("livenessProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 0}"), "spec.containers[0].livenessProbe.terminationGracePeriodSeconds", "greater than 0"},
		{container("readinessProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 1}"), "spec.containers[0].readinessProbe.terminationGracePeriodSeconds", "readinessProbes"},
		{container("readinessProbe: {httpGet: {port: 0}}"), "spec.containers[0].readinessProbe.httpGet.port", "65535"},
		{container("readinessProbe: {httpGet: {port: http_}}"), "spec.containers[0].readinessProbe.httpGet.port", "alpha-numeric"},
		{container("readinessProbe: {httpGet: {port: 1, scheme: FTP}}"), "spec.containers[0].readinessProbe.httpGet.scheme", "HTTPS"},
		{container("readinessProbe: {httpGet: {port: 1, httpHeaders: [{name: 'a b'}]}}"), "spec.containers[0].readinessProbe.httpGet.httpHeaders[0].name", "HTTP header"},
		{container("readinessProbe: {tcpSocket: {port: 0}}"), "spec.containers[0].readinessProbe.tcpSocket.port", "65535"},
		{container("readinessProbe: {grpc: {port: 0}}"), "spec.containers[0].readinessProbe.grpc.port", "65535"},
		{container("lifecycle: {preStop: {}}"), "spec.containers[0].lifecycle.preStop", "must specify a handler"},
		{container("lifecycle: {postStart: {tcpSocket: {port: 1}}}"), "spec.containers[0].lifecycle.postStart.tcpSocket", "supported: exec, httpGet, sleep"},
		{container("lifecycle: {preStop: {sleep: {seconds: 31}}}"), "spec.containers[0].lifecycle.preStop.sleep.seconds", "at most terminationGracePeriodSeconds"},
		{"initContainers: [{name: i, image: b, livenessProbe: {exec: {command: [a]}}}]", "spec.initContainers[0].livenessProbe", "without restartPolicy=Always"},
		{"initContainers: [{name: i, image: b, restartPolicy: Often}]", "spec.initContainers[0].restartPolicy", "Always"},
		{"initContainers: [{name: a, image: b}]", "spec.containers[0].name", "Duplicate"},

		{container("resources: {limits: {cpu: 1}, requests: {cpu: 2}}"), "spec.containers[0].resources.requests[cpu]", "less than or equal to the cpu limit of 1"},
		{container("resources: {limits: {cpu: -1}}"), "spec.containers[0].resources.limits[cpu]", "greater than or equal to 0"},
		{container("resources: {limits: {'example.com/gpu': 1}}"), "spec.containers[0].resources.limits[example.com/gpu]", "supported: cpu, memory"},
		{container("resources: {limits: {memory: 100m}}"), "spec.containers[0].resources.limits[memory]", "integer"},
		{container("resources: {requests: {hugepages-2Mi: 2Mi}}"), "spec.containers[0].resources.limits[hugepages-2Mi]", "Required"},
		{container("resizePolicy: [{resourceName: cpu, restartPolicy: X}]"), "spec.containers[0].resizePolicy[0].restartPolicy", "NotRequired"},

		{container("securityContext: {runAsUser: -1}"), "spec.containers[0].securityContext.runAsUser", "between 0"},
		{container("securityContext: {privileged: true, allowPrivilegeEscalation: false}"), "spec.containers[0].securityContext.allowPrivilegeEscalation", "privileged"},
		{container("securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [SYS_ADMIN]}}"), "spec.containers[0].securityContext.allowPrivilegeEscalation", "CAP_SYS_ADMIN"},
		{container("securityContext: {procMount: Unmasked}"), "spec.containers[0].securityContext.procMount", "hostUsers"},
		{container("securityContext: {seccompProfile: {type: Localhost}}"), "spec.containers[0].securityContext.seccompProfile.localhostProfile", "Required"},
		{container("securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../x}}"), "spec.containers[0].securityContext.seccompProfile.localhostProfile", "'..'"},
		{container("securityContext: {appArmorProfile: {type: RuntimeDefault, localhostProfile: x}}"), "spec.containers[0].securityContext.appArmorProfile.localhostProfile", "Localhost"},
		{"securityContext: {fsGroup: -1}", "spec.securityContext.fsGroup", "between 0"},
		{"securityContext: {supplementalGroups: [-1]}", "spec.securityContext.supplementalGroups[0]", "between 0"},
		{"securityContext: {fsGroupChangePolicy: X}", "spec.securityContext.fsGroupChangePolicy", "OnRootMismatch"},
		{"securityContext: {seccompProfile: {type: X}}", "spec.securityContext.seccompProfile.type", "RuntimeDefault"},
		{"securityContext: {windowsOptions: {}}", "spec.securityContext.windowsOptions", "not supported"},
		{"securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", "spec.securityContext.sysctls[0].name", "net.ipv4.tcp_syncookies"},
		{"hostNetwork: true\nsecurityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}", "spec.securityContext.sysctls[0].name", "hostNetwork"},
		{"hostPID: true\nshareProcessNamespace: true", "spec.shareProcessNamespace", "hostPID"},
	} {
		err := node.Pod(podOf(t, c.spec), "default")
		fields := fault.Fields(err)
		if !fault.Is(err, fault.Invalid) || len(fields) == 0 {
			t.Errorf("%s: got %v", c.spec, err)
			continue
		}
		if f := fields[0]; f.Path != c.field || !strings.Contains(f.Detail, c.words) {
			t.Errorf("%s:\n got %v\nwant %s with %q", c.spec, err, c.field, c.words)
		}
	}
}

func TestTaken(t *testing.T) {
	for _, spec := range []string{
		"", "restartPolicy: Never\nactiveDeadlineSeconds: 10", "hostNetwork: true\nhostPID: true\nhostIPC: true",
		"dnsPolicy: None\ndnsConfig: {nameservers: [1.1.1.1, '::1'], searches: [a.b., .], options: [{name: ndots, value: '2'}]}",
		"hostAliases: [{ip: '::1', hostnames: [a.b]}]\nhostname: a\nsubdomain: b",
		"initContainers: [{name: i, image: b}, {name: s, image: b, restartPolicy: Always, livenessProbe: {exec: {command: [a]}}}]",
		"tolerations: [{operator: Exists}, {key: a, value: b, effect: NoExecute, tolerationSeconds: 5}]",
		"securityContext: {runAsUser: 1, runAsNonRoot: true, fsGroup: 5, sysctls: [{name: net/ipv4/tcp_syncookies, value: '1'}], seccompProfile: {type: RuntimeDefault}}",
		container("env: [{name: A.b-c, value: x}, {name: l, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['a.b/c']\"}}}, {name: r, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}], envFrom: [{prefix: X_, secretRef: {name: s, optional: true}}]"),
		container("ports: [{containerPort: 53, protocol: UDP, hostPort: 53}, {containerPort: 53, hostPort: 53}]"),
		container("resources: {limits: {cpu: 100m, memory: 1Gi, ephemeral-storage: 1Gi, hugepages-2Mi: 4Mi}, requests: {cpu: 100m}}"),
		"terminationGracePeriodSeconds: 0\n" + container("lifecycle: {preStop: {sleep: {seconds: 0}}, postStart: {exec: {command: [x]}}}"),
		"volumes: [{name: v}, {name: c, configMap: {name: m, optional: true, items: [{key: k, path: a/b, mode: 256}]}}]\n" + container("volumeMounts: [{name: v, mountPath: /a}, {name: c, mountPath: /b, readOnly: true, mountPropagation: HostToContainer}]"),
	} {
		if err := node.Pod(podOf(t, spec), ""); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func TestUpdate(t *testing.T) {
	const old = "tolerations: [{key: a, operator: Exists}]\nactiveDeadlineSeconds: 100\n"
	for _, c := range []struct {
		name, spec, field string
		generation        int64
	}{
		{"nothing", old, "", 4},
		{"image", old + "containers: [{name: a, image: 'c:2'}]", "", 5},
		{"deadline shortened", strings.Replace(old, "100", "50", 1), "", 5},
		{"toleration added", strings.Replace(old, "Exists}", "Exists}, {key: b, operator: Exists}", 1), "", 5},
		{"deadline prolonged", strings.Replace(old, "100", "200", 1), "spec.activeDeadlineSeconds", 0},
		{"deadline removed", strings.Replace(old, "activeDeadlineSeconds: 100\n", "", 1), "spec.activeDeadlineSeconds", 0},
		{"toleration removed", "activeDeadlineSeconds: 100", "spec.tolerations", 0},
		{"container added", old + "containers: [{name: a, image: b}, {name: c, image: d}]", "spec.containers", 0},
		{"command", old + "containers: [{name: a, image: b, command: [x]}]", "spec.containers[0].command", 0},
		{"limits", old + "containers: [{name: a, image: b, resources: {limits: {cpu: 1}}}]", "spec.containers[0].resources.limits", 0},
		{"network", old + "hostNetwork: true", "spec.hostNetwork", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := podOf(t, old)
			if err := node.Pod(before, "default"); err != nil {
				t.Fatal(err)
			}
			before.Generation = 4
			after := podOf(t, c.spec)
			err := node.Update(after, before)
			fields := fault.Fields(err)
			if c.field == "" {
				if err != nil || after.Generation != c.generation {
					t.Errorf("got generation %d, %v", after.Generation, err)
				}
				return
			}
			if len(fields) == 0 || fields[0].Path != c.field {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestConfigMapAndSecret(t *testing.T) {
	yes := true
	m := &v1.ConfigMap{Data: map[string]string{"a/b": "x", "both": "x"}, BinaryData: map[string][]byte{"both": nil}}
	m.Name = "m"
	if f := fault.Fields(admission.ConfigMap(m, nil, "ns")); len(f) != 2 || f[0].Path != "data[a/b]" || f[1].Path != "data[both]" {
		t.Errorf("got %v", f)
	}
	large := &v1.ConfigMap{Data: map[string]string{"a": strings.Repeat("x", 1<<20+1)}}
	large.Name = "m"
	if err := admission.ConfigMap(large, nil, "ns"); !fault.Is(err, fault.Invalid) {
		t.Errorf("got %v", err)
	}
	old := &v1.ConfigMap{Data: map[string]string{"a": "1"}, Immutable: &yes}
	old.Name, old.Namespace, old.UID = "m", "ns", "u"
	changed := &v1.ConfigMap{Data: map[string]string{"a": "2"}, Immutable: &yes}
	changed.Name = "m"
	if f := fault.Fields(admission.ConfigMap(changed, old, "ns")); len(f) != 1 || f[0].Path != "data" {
		t.Errorf("got %v", f)
	}

	for _, c := range []struct {
		secret v1.Secret
		field  string
	}{
		{v1.Secret{StringData: map[string]string{"a": "b"}}, ""},
		{v1.Secret{Type: v1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": nil}}, "data[tls.key]"},
		{v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte("x")}}, "data[.dockerconfigjson]"},
		{v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte("{}")}}, ""},
		{v1.Secret{Type: v1.SecretTypeBasicAuth}, "data"},
		{v1.Secret{Type: "example.com/own"}, ""},
	} {
		s := c.secret.DeepCopy()
		s.Name = "s"
		f := fault.Fields(admission.Secret(s, nil, "ns"))
		if (c.field == "" && len(f) > 0) || (c.field != "" && (len(f) != 1 || f[0].Path != c.field)) {
			t.Errorf("%+v: got %v", c.secret, f)
		}
	}
	before, after := &v1.Secret{Type: v1.SecretTypeOpaque}, &v1.Secret{Type: v1.SecretTypeSSHAuth, Data: map[string][]byte{"ssh-privatekey": nil}}
	before.Name, after.Name = "s", "s"
	if f := fault.Fields(admission.Secret(after, before, "ns")); len(f) != 1 || f[0].Path != "type" {
		t.Errorf("got %v", f)
	}
}

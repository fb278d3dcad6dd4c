// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The names of the built-in templates.
const (
	templateSidecar    = "sidecar"
	templateGateway    = "gateway"
	templateGRPCAgent  = "grpc-agent"
	templateGRPCSimple = "grpc-simple"
)

// builtins returns the built-in templates. Their results are merged with the pod, as those of
// custom templates are.
func builtins() map[string]func(*job) *corev1.Pod {
	return map[string]func(*job) *corev1.Pod{
		templateSidecar:    (*job).sidecar,
		templateGateway:    (*job).gateway,
		templateGRPCAgent:  (*job).grpcAgent,
		templateGRPCSimple: (*job).grpcSimple,
	}
}

// sidecar renders an Envoy beside the application, which intercepts its traffic.
func (j *job) sidecar() *corev1.Pod {
	m := j.storage(volumeEnvoy)
	j.userVolumes(m)
	proxy := j.sidecarContainer(m.mounts)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: j.sidecarLabels(), Annotations: j.annotations()},
		Spec:       corev1.PodSpec{Volumes: m.volumes, ImagePullSecrets: j.pullSecrets()},
	}
	if j.mode() != modeNone {
		p.Spec.InitContainers = append(p.Spec.InitContainers, j.interception())
	}
	if j.native {
		p.Spec.InitContainers = append(p.Spec.InitContainers, proxy)
	} else {
		p.Spec.Containers = []corev1.Container{proxy}
	}
	j.cniAnnotations(p.Annotations)
	return p
}

// labels returns the labels that name the workload in telemetry.
func (j *job) labels() map[string]string {
	own := j.pod.Labels
	first := func(values ...string) string {
		for _, s := range values {
			if s != "" {
				return s
			}
		}
		return ""
	}
	return map[string]string{
		nameCanonical:         first(own[nameCanonical], own["app.kubernetes.io/name"], own["app"], j.owner.name),
		nameCanonicalRevision: first(own[nameCanonicalRevision], own["app.kubernetes.io/version"], own["version"], "latest"),
	}
}

func (j *job) sidecarLabels() map[string]string {
	labels := j.labels()
	const longest = 63 // letters of a label
	name := labels[nameCanonical]
	labels[nameCanonical] = strings.Trim(name[:min(len(name), longest)], "-_.")
	labels[nameTLSMode] = "istio"
	if mode := j.pod.Labels[nameTLSMode]; mode != "" {
		labels[nameTLSMode] = mode
	}
	if j.proxy.GetProxyMetadata()["ISTIO_META_ENABLE_HBONE"] == "true" {
		labels[nameTunnel] = "http"
		if protocol := j.pod.Labels[nameTunnel]; protocol != "" {
			labels[nameTunnel] = protocol
		}
	}
	return labels
}

// annotations returns the annotations that all templates add.
func (j *job) annotations() map[string]string {
	out := map[string]string{nameRevision: j.revision}
	if apps := j.apps(); len(apps) > 0 {
		for _, name := range []string{nameDefaultContainer, nameDefaultLogs} {
			if _, ok := j.pod.Annotations[name]; !ok {
				out[name] = apps[0]
			}
		}
	}
	return out
}

// traffic is which traffic the proxy intercepts, as an annotation states it or else a value.
type traffic struct {
	annotation, flag, value string
	always                  bool // the flag is written without a value, too
}

func (j *job) traffic() []traffic {
	p := &j.values.Global.Proxy
	row := func(annotation, flag string, value text, always bool) traffic {
		return traffic{annotation, flag, j.annotated(annotation, value), always}
	}
	inbound := row(nameExcludeInbound, "-d", p.ExcludeInboundPorts, true)
	inbound.value = excludedPorts(j.statusPort(), inbound.value)
	return []traffic{
		row(nameIncludeRanges, "-i", p.IncludeRanges, true),
		row(nameExcludeRanges, "-x", p.ExcludeRanges, true),
		row(nameIncludeInbound, "-b", p.IncludeInboundPorts, true),
		inbound,
		row(nameIncludeOutbound, "-q", p.IncludeOutboundPorts, false),
		row(nameExcludeOutbound, "-o", p.ExcludeOutboundPorts, false),
		row(nameReroute, "-k", "", false),
		row(nameKubevirt, "-k", "", false),
		row(nameExcludeInterfaces, "-c", "", false),
	}
}

// cniAnnotations adds the annotations that the CNI plugin reads: it does not know the values.
func (j *job) cniAnnotations(out map[string]string) {
	if !j.values.Pilot.CNI.Enabled {
		return
	}
	out[nameInterception] = j.mode()
	for _, t := range j.traffic() {
		if t.value != "" || t.annotation == nameIncludeInbound || t.annotation == nameExcludeInbound {
			out[t.annotation] = t.value
		}
	}
	if j.values.Pilot.CNI.Provider == "multus" {
		out[nameMultus] = withNetwork(j.pod.Annotations[nameMultus], "default", "istio-cni")
	}
}

// withNetwork adds a network to the list of Multus, which is JSON or names with commas. A list that
// has it, and one that cannot be read, stays.
func withNetwork(list, namespace, name string) string {
	full := strings.TrimPrefix(namespace+"/"+name, "/")
	if strings.TrimSpace(list) == "" {
		return full
	}
	if !strings.HasPrefix(strings.TrimSpace(list), "[") {
		for _, item := range items(list) {
			if item == full {
				return list
			}
		}
		return list + ", " + full
	}
	var networks []map[string]any
	if json.Unmarshal([]byte(list), &networks) != nil {
		return list
	}
	for _, n := range networks {
		if of, _ := n["namespace"].(string); n["name"] == name && of == namespace {
			return list
		}
	}
	added := fmt.Sprintf("{\"name\": %q, \"namespace\": %q}", name, namespace)
	if namespace == "" {
		added = fmt.Sprintf("{\"name\": %q}", name)
	}
	end := strings.LastIndex(list, "]")
	comma := ", "
	if len(networks) == 0 {
		comma = ""
	}
	return list[:end] + comma + added + list[end:]
}

// interception returns the container that sets up interception or, with the CNI plugin, verifies
// that it is set up.
func (j *job) interception() corev1.Container {
	g := &j.values.Global
	uid, gid := j.user, j.group
	if j.mode() == modeTProxy { // the proxy runs as root; its group tells connections apart
		uid, gid = proxyID, proxyID
	}
	args := []string{
		"istio-iptables", "-p", listenPort(j.mesh.GetProxyListenPort(), 15001), "-z", listenPort(j.mesh.GetProxyInboundListenPort(), 15006),
		"-u", strconv.FormatInt(uid, 10), "-m", j.mode(),
	}
	ports := strconv.Itoa(metricsPort) + "," + strconv.Itoa(readyPort)
	rerouted := false
	for _, t := range j.traffic() {
		switch {
		case t.flag == "-d":
			args = append(args, t.flag, strings.TrimSuffix(ports+","+t.value, ","))
		case t.flag == "-k" && t.value != "" && !rerouted:
			args, rerouted = append(args, t.flag, t.value), true // the first annotation has precedence
		case t.flag != "-k" && (t.always || t.value != ""):
			args = append(args, t.flag, t.value)
		}
	}
	args = append(args, "--log_output_level="+j.annotated(nameAgentLogLevel, g.Logging.Level))
	if g.LogAsJSON {
		args = append(args, "--log_as_json")
	}
	privileged := bool(g.Proxy.Privileged)
	c := corev1.Container{
		Name: initName, Image: j.initImage(), ImagePullPolicy: corev1.PullPolicy(g.ImagePullPolicy), Resources: j.resources(),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &privileged, Privileged: &privileged, SeccompProfile: g.Proxy.SeccompProfile,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	s := c.SecurityContext
	if j.values.Pilot.CNI.Enabled {
		c.Name, args = validationName, append(args, "--run-validation", "--skip-rule-apply")
		s.ReadOnlyRootFilesystem, s.RunAsNonRoot = new(true), new(true)
		s.RunAsUser, s.RunAsGroup = &uid, &gid
	} else {
		if g.ProxyInit.Force {
			args = append(args, "--force-apply")
		}
		s.Capabilities.Add = []corev1.Capability{"NET_ADMIN", "NET_RAW"}
		s.ReadOnlyRootFilesystem, s.RunAsNonRoot = new(false), new(false)
		s.RunAsUser, s.RunAsGroup = new(int64(0)), new(int64(0))
	}
	if g.NativeNftables {
		args = append(args, "--native-nftables")
	}
	c.Args = args
	var e environment
	e.setAll(j.proxy.GetProxyMetadata())
	c.Env = e
	return c
}

func joined(names []string) string { return strings.Join(names, ",") }

// listenPort returns a port of the mesh config as text.
func listenPort(port, unset int32) string {
	if port == 0 {
		port = unset
	}
	return strconv.Itoa(int(port))
}

// sidecarContainer returns the container of the proxy.
func (j *job) sidecarContainer(mounts []corev1.VolumeMount) corev1.Container {
	p := &j.values.Global.Proxy
	c := j.container("sidecar")
	c.Ports = []corev1.ContainerPort{{ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP, Name: "http-envoy-prom"}}
	c.Env, c.Resources, c.VolumeMounts = j.sidecarEnvironment(), j.resources(), mounts
	switch {
	case p.Lifecycle != nil:
		c.Lifecycle = p.Lifecycle
	case j.native:
		// The pod begins to end: clients are asked to leave, nothing is refused. The agent ends after
		// the application.
		c.Lifecycle = &corev1.Lifecycle{PreStop: exec("request", "--debug-port="+j.statusPort(), "POST", "drain")}
	case j.holds():
		c.Lifecycle = &corev1.Lifecycle{PostStart: exec("wait")}
	}
	if j.statusPort() != "0" {
		if p.StartupProbe.Enabled {
			c.StartupProbe = &corev1.Probe{
				ProbeHandler: ready(readyPort), PeriodSeconds: 1, TimeoutSeconds: 3,
				FailureThreshold: j.number("global.proxy.startupProbe.failureThreshold", p.StartupProbe.Failures),
			}
		}
		c.ReadinessProbe = j.readiness(readyPort)
	}
	privileged := bool(p.Privileged)
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &privileged, Privileged: &privileged, ReadOnlyRootFilesystem: new(true), SeccompProfile: p.SeccompProfile,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		RunAsNonRoot: new(true), RunAsUser: &j.user, RunAsGroup: &j.group,
	}
	var add []corev1.Capability
	if j.mode() == modeTProxy {
		add = append(add, "NET_ADMIN")
	}
	if j.annotated(nameBind, p.CapNetBindService) == "true" {
		add = append(add, "NET_BIND_SERVICE")
	}
	if len(add) > 0 {
		c.SecurityContext.Capabilities.Add = add
		c.SecurityContext.RunAsNonRoot, c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = new(false), new(int64(0)), new(int64(proxyID))
	}
	if j.native {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	}
	return c
}

// sidecarEnvironment returns the variables of the proxy.
func (j *job) sidecarEnvironment() environment {
	var e environment
	if j.mesh.GetInboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_InboundTrafficPolicy_LOCALHOST {
		e.set("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "true")
	}
	e = append(e, j.environment()...)
	e.limits()
	e.set("ISTIO_META_INTERCEPTION_MODE", j.mode())
	j.bootstrapOverride(&e)
	if doc, ok := j.pod.Annotations[nameDatadog]; ok && j.values.Global.Proxy.Tracer == "datadog" {
		var more map[string]text
		if err := json.Unmarshal([]byte(doc), &more); err != nil {
			j.fail(fmt.Errorf("annotation %s is %s: it must be JSON, a map of texts: %w", nameDatadog, clipped(doc), err))
		}
		values := map[string]string{}
		for name, value := range more {
			values[name] = string(value)
		}
		e.setAll(values)
	}
	e.setFilled("OTEL_RESOURCE_ATTRIBUTES", j.resourceAttributes())
	e.setAll(j.proxy.GetProxyMetadata())
	return e
}

// bootstrapOverride sets the file of a custom bootstrap.
func (j *job) bootstrapOverride(e *environment) {
	if _, ok := j.pod.Annotations[nameBootstrap]; ok {
		e.set("ISTIO_BOOTSTRAP_OVERRIDE", "/etc/istio/custom-bootstrap/custom_bootstrap.json")
	}
}

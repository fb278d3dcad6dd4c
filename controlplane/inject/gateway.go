// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"reflect"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gateway renders an Envoy that is the application: nothing is intercepted.
func (j *job) gateway() *corev1.Pod {
	m := j.storage(volumeEnvoy)
	c := j.container("router")
	c.Ports = []corev1.ContainerPort{{ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP, Name: "http-envoy-prom"}}
	c.Lifecycle = j.values.Global.Proxy.Lifecycle
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: &j.user, RunAsGroup: &j.group}
	e := j.environment()
	e.limits()
	e.set("ISTIO_META_INTERCEPTION_MODE", j.proxy.GetInterceptionMode().String())
	j.bootstrapOverride(&e)
	e.setAll(j.proxy.GetProxyMetadata())
	c.Env, c.VolumeMounts, c.ReadinessProbe = e, m.mounts, j.readiness(readyPort)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: j.labels(), Annotations: j.annotations()},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c}, Volumes: m.volumes, ImagePullSecrets: j.pullSecrets()},
	}
	p.Spec.SecurityContext = j.values.Gateways.SecurityContext
	if c := p.Spec.SecurityContext; c == nil || reflect.DeepEqual(*c, corev1.PodSecurityContext{}) {
		// Ports below 1024 without a capability.
		p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}}
	}
	return p
}

// grpcAgent renders an agent without Envoy, which serves xDS and certificates to an application
// that uses gRPC's own client.
func (j *job) grpcAgent() *corev1.Pod {
	const port = 15020
	m := j.storage(volumeXDS)
	j.userVolumes(m)
	c := j.container("sidecar")
	c.Ports = []corev1.ContainerPort{{ContainerPort: port, Protocol: corev1.ProtocolTCP, Name: "mesh-metrics"}}
	c.Lifecycle = &corev1.Lifecycle{PostStart: exec("wait", "--url=http://localhost:"+strconv.Itoa(port)+readyPath)}
	var e environment
	e.set("ISTIO_META_GENERATOR", "grpc")
	e.set("OUTPUT_CERTS", dataDir)
	e = append(e, j.environment()...)
	e.setAll(j.proxy.GetProxyMetadata())
	e.set("ISTIO_META_DNS_CAPTURE", "false") // xDS names addresses
	e.set("DISABLE_ENVOY", "true")
	c.Env, c.Resources, c.VolumeMounts = e, j.resources(), m.mounts
	if j.statusPort() != "0" {
		c.ReadinessProbe = j.readiness(port)
	}
	annotations := j.annotations()
	annotations[nameRewriteProbes] = "false" // nothing is intercepted
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: j.labels(), Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c}, Volumes: m.volumes, ImagePullSecrets: j.pullSecrets()},
	}
	_, certs := j.certs()
	for _, name := range j.apps() {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: name,
			Env: []corev1.EnvVar{
				{Name: "GRPC_XDS_EXPERIMENTAL_SECURITY_SUPPORT", Value: "true"},
				{Name: "GRPC_XDS_BOOTSTRAP", Value: configDir + "/grpc-bootstrap.json"},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: volumeData, MountPath: dataDir}, {Name: volumeXDS, MountPath: configDir}, certs},
		})
	}
	return p
}

// grpcSimple renders only the bootstrap of gRPC's own client, which asks the control plane without
// an agent and without certificates. Kubernetes fills in the address and the names of the pod.
func (j *job) grpcSimple() *corev1.Pod {
	type object = map[string]any
	bootstrap, err := json.Marshal(object{
		"xds_servers": []object{{
			"server_uri":      "dns:///istiod." + string(j.values.Global.IstioNamespace) + ".svc:15010",
			"channel_creds":   []object{{"type": "insecure"}},
			"server_features": []string{"xds_v3"},
		}},
		"node": object{
			"id":       "sidecar~$(INSTANCE_IP)~$(POD_NAME).$(POD_NAMESPACE)~" + string(j.values.Global.Proxy.ClusterDomain),
			"metadata": object{"GENERATOR": "grpc"},
		},
	})
	if err != nil {
		j.fail(err) // texts can be written
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{nameRewriteProbes: "false"}}}
	for _, name := range j.apps() {
		var e environment
		e.field("INSTANCE_IP", "status.podIP")
		e.field("POD_NAME", "metadata.name")
		e.field("POD_NAMESPACE", "metadata.namespace")
		e.set("GRPC_XDS_BOOTSTRAP_CONFIG", string(bootstrap))
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Env: e})
	}
	return p
}

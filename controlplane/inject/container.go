// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The volumes that proxies have in common.
const (
	volumeSocket      = "workload-socket"
	volumeCredentials = "credential-socket"
	volumeCerts       = "workload-certs"
	volumeGKE         = "gke-workload-certificate"
	volumeRoot        = "istiod-ca-cert"
	volumeKubeRoot    = "kube-ca-cert"
	volumeCRL         = "istio-ca-crl"
	volumeData        = "istio-data"
	volumeBootstrap   = "custom-bootstrap-volume"
	volumeEnvoy       = "istio-envoy"
	volumeXDS         = "istio-xds"
	volumeToken       = "istio-token"
	volumeOldCerts    = "istio-certs"
	volumePodinfo     = "istio-podinfo"
)

const (
	dataDir   = "/var/lib/istio/data"
	configDir = "/etc/istio/proxy"
	certsDir  = "/var/run/secrets/workload-spiffe-credentials"
	// tokenSeconds is the lifetime of the token that proves who the pod is.
	tokenSeconds = 43200
	readyPath    = "/healthz/ready"
	readyPort    = 15021
	metricsPort  = 15090
)

// container returns the parts of the proxy's container that all templates share. role is sidecar or
// router.
func (j *job) container(role string) corev1.Container {
	g := &j.values.Global
	c := corev1.Container{
		Name: proxyName, Image: j.image(), ImagePullPolicy: corev1.PullPolicy(g.ImagePullPolicy),
		Args: []string{
			"proxy", role, "--domain", "$(POD_NAMESPACE).svc." + string(g.Proxy.ClusterDomain),
			"--proxyLogLevel=" + j.annotated(nameLogLevel, g.Proxy.LogLevel),
			"--proxyComponentLogLevel=" + j.annotated(nameComponentLogLevel, g.Proxy.ComponentLogLevel),
			"--log_output_level=" + j.annotated(nameAgentLogLevel, g.Logging.Level),
		},
	}
	if port := g.STS.ServicePort; port != "" && port != "0" {
		c.Args = append(c.Args, "--stsPort="+string(port))
	}
	if g.LogAsJSON {
		c.Args = append(c.Args, "--log_as_json")
	}
	if path := g.Proxy.OutlierLogPath; path != "" {
		c.Args = append(c.Args, "--outlierLogPath="+string(path))
	}
	return c
}

// environment returns the variables that all templates share, before those of proxyMetadata.
func (j *job) environment() environment {
	g := &j.values.Global
	var e environment
	e.setFilled("JWT_POLICY", string(g.JWTPolicy))
	e.set("PILOT_CERT_PROVIDER", string(g.CertProvider))
	e.set("CA_ADDR", j.caAddress())
	e.field("POD_NAME", "metadata.name")
	e.field("POD_NAMESPACE", "metadata.namespace")
	e.field("INSTANCE_IP", "status.podIP")
	e.field("SERVICE_ACCOUNT", "spec.serviceAccountName")
	e.field("HOST_IP", "status.hostIP")
	e.set("PROXY_CONFIG", j.proxyConfig())
	e.set("ISTIO_META_POD_PORTS", j.ports())
	e.set("ISTIO_META_APP_CONTAINERS", joined(j.apps()))
	e.setFilled("COMPLIANCE_POLICY", string(j.compliance))
	e.set("ISTIO_META_CLUSTER_ID", j.cluster())
	e.field("ISTIO_META_NODE_NAME", "spec.nodeName")
	e.setFilled("ISTIO_META_NETWORK", j.network())
	name := j.owner.name
	if label := j.pod.Labels[nameWorkload]; label != "" {
		name = label
	}
	e.setFilled("ISTIO_META_WORKLOAD_NAME", name)
	if j.owner.name != "" && j.owner.apiVersion != "" {
		e.set("ISTIO_META_OWNER", j.owner.String())
	}
	mesh := string(g.MeshID)
	if mesh == "" {
		mesh = j.trustDomain()
	}
	e.setFilled("ISTIO_META_MESH_ID", mesh)
	e.setFilled("TRUST_DOMAIN", j.trustDomain())
	return e
}

// limits adds the variables with the limits of the container.
func (e *environment) limits() {
	for _, v := range []struct{ name, resource string }{{"ISTIO_CPU_LIMIT", "limits.cpu"}, {"GOMEMLIMIT", "limits.memory"}} {
		e.add(corev1.EnvVar{Name: v.name, ValueFrom: &corev1.EnvVarSource{
			ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: v.resource, Divisor: resource.MustParse("1")},
		}})
	}
}

// resources returns the resources of the proxy: those of the annotations, or without any those of
// the values.
func (j *job) resources() corev1.ResourceRequirements {
	var out corev1.ResourceRequirements
	annotated := false
	for _, a := range []struct {
		annotation string
		list       *corev1.ResourceList
		resource   corev1.ResourceName
	}{
		{nameCPU, &out.Requests, corev1.ResourceCPU},
		{nameMemory, &out.Requests, corev1.ResourceMemory},
		{nameCPULimit, &out.Limits, corev1.ResourceCPU},
		{nameMemoryLimit, &out.Limits, corev1.ResourceMemory},
	} {
		s, ok := j.pod.Annotations[a.annotation]
		if !ok {
			continue
		}
		quantity, err := resource.ParseQuantity(s)
		if err != nil {
			j.fail(fmt.Errorf("annotation %s: %w", a.annotation, err)) // checked before
			continue
		}
		if *a.list == nil {
			*a.list = corev1.ResourceList{}
		}
		(*a.list)[a.resource] = quantity
		annotated = true
	}
	if annotated {
		return out
	}
	return *j.values.Global.Proxy.Resources.DeepCopy()
}

// readiness returns the readiness probe of the proxy.
func (j *job) readiness(port int32) *corev1.Probe {
	p := &j.values.Global.Proxy
	return &corev1.Probe{
		ProbeHandler:        ready(port),
		InitialDelaySeconds: j.number(nameInitialDelay, p.ReadinessInitialDelay),
		PeriodSeconds:       j.number(namePeriod, p.ReadinessPeriod),
		FailureThreshold:    j.number(nameFailures, p.ReadinessFailures),
		TimeoutSeconds:      3,
	}
}

func ready(port int32) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: readyPath, Port: intstr.FromInt32(port)}}
}

// exec returns a hook that runs the agent.
func exec(args ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: append([]string{"pilot-agent"}, args...)}}
}

// certs returns the volume and the mount of certificates that another program provides.
func (j *job) certs() (corev1.Volume, corev1.VolumeMount) {
	if j.values.Global.CAName == "GkeWorkloadCertificate" {
		return corev1.Volume{Name: volumeGKE, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "workloadcertificates.security.cloud.google.com"}}},
			corev1.VolumeMount{Name: volumeGKE, MountPath: certsDir, ReadOnly: true}
	}
	return emptyDir(volumeCerts, corev1.StorageMediumDefault), corev1.VolumeMount{Name: volumeCerts, MountPath: certsDir}
}

// emptyDir returns a volume of the pod's own. Without a medium it names no source, which means the
// same, so that another template can name one.
func emptyDir(name string, medium corev1.StorageMedium) corev1.Volume {
	v := corev1.Volume{Name: name}
	if medium != "" {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{Medium: medium}
	}
	return v
}

func configMap(name, source string, optional *bool) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: source}, Optional: optional,
	}}}
}

// mounted collects volumes, each with its mount in the proxy.
type mounted struct {
	volumes []corev1.Volume
	mounts  []corev1.VolumeMount
}

func (m *mounted) add(v corev1.Volume, path string, readOnly bool) {
	m.volumes = append(m.volumes, v)
	m.mounts = append(m.mounts, corev1.VolumeMount{Name: v.Name, MountPath: path, ReadOnly: readOnly})
}

// storage returns the volumes of the proxy and where it mounts them. socket is the volume of the
// sockets toward Envoy or gRPC.
func (j *job) storage(socket string) *mounted {
	m := &mounted{}
	g := &j.values.Global
	m.add(emptyDir(volumeSocket, ""), "/var/run/secrets/workload-spiffe-uds", false)
	if socket == volumeEnvoy {
		m.add(emptyDir(volumeCredentials, ""), "/var/run/secrets/credential-uds", false)
	}
	volume, mount := j.certs()
	m.volumes, m.mounts = append(m.volumes, volume), append(m.mounts, mount)
	j.roots(m)
	m.add(emptyDir(volumeData, ""), dataDir, false)
	if name, ok := j.pod.Annotations[nameBootstrap]; ok && socket == volumeEnvoy {
		m.add(configMap(volumeBootstrap, name, nil), "/etc/istio/custom-bootstrap", false)
	}
	m.add(emptyDir(socket, corev1.StorageMediumMemory), configDir, false)
	seconds, optional := int64(tokenSeconds), true
	m.add(corev1.Volume{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Path: volumeToken, ExpirationSeconds: &seconds, Audience: string(g.SDS.Token.Audience),
		}}},
	}}}, "/var/run/secrets/tokens", false)
	if g.MountCerts {
		account := j.pod.Spec.ServiceAccountName
		if account == "" {
			account = "default"
		}
		m.add(corev1.Volume{Name: volumeOldCerts, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "istio." + account, Optional: &optional,
		}}}, "/etc/certs/", true)
	}
	info := func(path string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata." + path}}
	}
	m.add(corev1.Volume{Name: volumePodinfo, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{info("labels"), info("annotations")},
	}}}, "/etc/istio/pod", false)
	return m
}

// roots adds the volumes with the roots of the control plane.
func (j *job) roots(m *mounted) {
	bundle, optional := j.values.Global.TrustBundleName, true
	switch j.values.Global.CertProvider {
	case "kubernetes":
		m.add(configMap(volumeKubeRoot, "kube-root-ca.crt", nil), "/var/run/secrets/istio/kubernetes", false)
	case "istiod":
		if j.values.Pilot.Env["ENABLE_CLUSTER_TRUST_BUNDLE_API"] == "true" {
			if bundle == "" {
				bundle = "root-cert"
			}
			name := "istio.io:istiod-ca:" + string(bundle)
			m.add(corev1.Volume{Name: volumeRoot, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: &name, Path: "root-cert.pem"}}},
			}}}, "/var/run/secrets/istio", false)
		} else {
			if bundle == "" {
				bundle = "istio-ca-root-cert"
			}
			m.add(configMap(volumeRoot, string(bundle), nil), "/var/run/secrets/istio", false)
		}
		crl := j.values.Pilot.CRL
		if crl == "" {
			crl = volumeCRL
		}
		m.add(configMap(volumeCRL, string(crl), &optional), "/var/run/secrets/istio/crl", false)
	}
}

// userVolumes adds the volumes and mounts of the annotations.
func (j *job) userVolumes(m *mounted) {
	parse := func(annotation string) (map[string]json.RawMessage, []string) {
		var objects map[string]json.RawMessage
		if doc, ok := j.pod.Annotations[annotation]; ok {
			if err := json.Unmarshal([]byte(doc), &objects); err != nil {
				j.fail(fmt.Errorf("annotation %s: %w", annotation, err)) // checked before
			}
		}
		return objects, slices.Sorted(maps.Keys(objects))
	}
	mounts, names := parse(nameUserMount)
	for _, name := range names {
		mount := corev1.VolumeMount{}
		if err := json.Unmarshal(mounts[name], &mount); err != nil {
			j.fail(fmt.Errorf("annotation %s: volume %s: %w", nameUserMount, clipped(name), err))
		}
		mount.Name = name
		m.mounts = append(m.mounts, mount)
	}
	volumes, names := parse(nameUserVolume)
	for _, name := range names {
		volume := corev1.Volume{}
		if err := json.Unmarshal(volumes[name], &volume); err != nil {
			j.fail(fmt.Errorf("annotation %s: volume %s: %w", nameUserVolume, clipped(name), err))
		}
		volume.Name = name
		m.volumes = append(m.volumes, volume)
	}
}

// pullSecrets returns the Secrets with the credentials of the registry.
func (j *job) pullSecrets() []corev1.LocalObjectReference {
	var out []corev1.LocalObjectReference
	for _, name := range j.values.Global.ImagePullSecrets {
		out = append(out, corev1.LocalObjectReference{Name: string(name)})
	}
	return out
}

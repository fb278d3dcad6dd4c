// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/e2e/kube"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// play follows Deployments and Gateways until the test ends.
func (w *world) play() {
	ctx := w.t.Context()
	deployments, err := w.client.Watch(ctx, &appsv1.DeploymentList{})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer deployments.Stop()
	gateways, err := w.client.Watch(ctx, &gatewayv1.GatewayList{})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer gateways.Stop()
	services, err := w.client.Watch(ctx, &corev1.ServiceList{})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer services.Stop()
	for {
		var done error
		// Cases: the end; a Deployment; a Service; a Gateway.
		select {
		case <-ctx.Done():
			return
		case e := <-deployments.ResultChan():
			if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type == watch.Added {
				done = w.deploy(ctx, d)
			}
		case e := <-services.ResultChan():
			if s, ok := e.Object.(*corev1.Service); ok && e.Type == watch.Added {
				done = w.gateway(ctx, s)
				for _, a := range w.apps {
					done = errors.Join(done, w.slice(ctx, a, s))
				}
			}
		case e := <-gateways.ResultChan():
			if g, ok := e.Object.(*gatewayv1.Gateway); ok && e.Type == watch.Deleted {
				done = w.collect(ctx, g)
			}
		}
		if done != nil && ctx.Err() == nil {
			w.t.Error(done)
		}
	}
}

// deploy runs the echo server of a Deployment.
func (w *world) deploy(ctx context.Context, d *appsv1.Deployment) error {
	if len(d.Spec.Template.Spec.Containers) == 0 || !strings.Contains(d.Spec.Template.Spec.Containers[0].Image, "echo-basic") {
		return nil
	}
	id := d.Namespace + "/" + d.Name
	dir := filepath.Join(w.dir, "echo-"+d.Namespace+"-"+d.Name)
	env := []string{"NAMESPACE=" + d.Namespace, "POD_NAME=" + d.Name + "-0-0"}
	ports := map[int32]int32{}
	for name, target := range map[string]int32{"HTTP_PORT": podPort, "H2C_PORT": 3001, "HTTPS_PORT": 8443, "TCP_PORT": podPort, "TLS_PORT": 8443} {
		port, err := ports[target], error(nil)
		if port == 0 {
			port, err = w.port(d.Name, target)
		}
		if err != nil {
			return err
		}
		ports[target] = port
		env = append(env, fmt.Sprintf("%s=%d", name, port))
	}
	secret := ""
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			secret = v.Secret.SecretName
		}
	}
	for _, e := range d.Spec.Template.Spec.Containers[0].Env {
		switch {
		case e.ValueFrom != nil:
		case strings.HasPrefix(e.Name, "TLS_"):
			env = append(env, e.Name+"="+filepath.Join(dir, filepath.Base(e.Value)))
		default:
			env = append(env, e.Name+"="+e.Value)
		}
	}
	start := func() { w.run(id, dir, env, "echo-basic") }
	if secret == "" {
		start()
	} else {
		go w.withSecret(ctx, d.Namespace, secret, dir, start) // ends with the test
	}
	a := &app{namespace: d.Namespace, name: d.Name, labels: d.Spec.Template.Labels, ports: ports}
	w.apps = append(w.apps, a)
	if err := w.pod(ctx, a); err != nil {
		return err
	}
	services, err := w.cluster.Admin().CoreV1().Services(d.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range services.Items {
		if err := w.slice(ctx, a, &services.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// withSecret writes a Secret to files once it exists.
func (w *world) withSecret(ctx context.Context, ns, name, dir string, start func()) {
	secrets, err := w.cluster.Admin().CoreV1().Secrets(ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer secrets.Stop()
	for e := range secrets.ResultChan() {
		s, ok := e.Object.(*corev1.Secret)
		if !ok {
			continue
		}
		err := os.MkdirAll(dir, 0o700)
		for _, file := range []struct{ name, key string }{{"crt", "tls.crt"}, {"key", "tls.key"}, {"tls.crt", "tls.crt"}, {"tls.key", "tls.key"}} {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, file.name), s.Data[file.key], 0o600))
		}
		if err != nil {
			w.t.Error(err)
			return
		}
		start()
		return
	}
}

// port returns a free port, which nothing else takes before the echo server listens. One test writes
// the port of infra-backend-v1 into an EndpointSlice itself.
func (w *world) port(deployment string, target int32) (int32, error) {
	if deployment == "infra-backend-v1" && target == podPort {
		return podPort, nil
	}
	text, err := ownnet.FreePort("0.0.0.0")
	if err != nil {
		return 0, err
	}
	port, err := strconv.ParseInt(text, 10, 32)
	return int32(port), err
}

// collect removes the objects that were deployed for a Gateway, as the garbage collector of
// Kubernetes does.
func (w *world) collect(ctx context.Context, g *gatewayv1.Gateway) error {
	w.stop("gateway/" + g.Namespace + "/" + g.Name)
	admin, name := w.cluster.Admin(), g.Name+"-"+class
	var errs []error
	for _, err := range []error{
		admin.CoreV1().Services(g.Namespace).Delete(ctx, name, metav1.DeleteOptions{}),
		admin.AppsV1().Deployments(g.Namespace).Delete(ctx, name, metav1.DeleteOptions{}),
		admin.CoreV1().ServiceAccounts(g.Namespace).Delete(ctx, name, metav1.DeleteOptions{}),
		admin.CoreV1().Pods(g.Namespace).Delete(ctx, name, *metav1.NewDeleteOptions(0)),
	} {
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// gateway sets an address in the Service that was deployed for a Gateway, and runs its proxy.
// Missing objects were deleted with the Gateway.
func (w *world) gateway(ctx context.Context, s *corev1.Service) (err error) {
	of := s.Labels[gatewayapi.NameLabel]
	if of == "" {
		return nil
	}
	defer func() {
		if apierrors.IsNotFound(err) {
			err = nil
		}
	}()
	w.mu.Lock()
	w.taken++
	address := fmt.Sprintf("127.77.58.%d", w.taken)
	w.mu.Unlock()
	services := w.cluster.Admin().CoreV1().Services(s.Namespace)
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := services.Get(ctx, s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		_, err = services.UpdateStatus(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	d, err := w.cluster.Admin().AppsV1().Deployments(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return w.agent(ctx, "gateway/"+s.Namespace+"/"+of, s.Namespace, address, metav1.ObjectMeta{
		Name: s.Name, Labels: d.Spec.Template.Labels, Annotations: d.Spec.Template.Annotations,
	})
}

// gatewayPod creates the Pod of a gateway. The control plane identifies the gateway by its labels.
func (w *world) gatewayPod(ctx context.Context, namespace, address string, meta metav1.ObjectMeta) error {
	meta.Namespace = namespace
	name := meta.Name
	pods := w.cluster.Admin().CoreV1().Pods(namespace)
	if err := pods.Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return w.readyPod(ctx, address, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeName: node, HostNetwork: true, ServiceAccountName: name, Containers: []corev1.Container{{Name: name, Image: "gateway"}},
	}})
}

// agent runs the agent and Envoy of a gateway in a Pod, as the service account of
// its name.
func (w *world) agent(ctx context.Context, id, namespace, address string, pod metav1.ObjectMeta) error {
	name := pod.Name
	labels, err := json.Marshal(pod.Labels)
	if err != nil {
		return err
	}
	if err := w.cluster.CreateServiceAccount(ctx, namespace, name); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	token, err := w.cluster.Token(ctx, namespace, name, kube.TokenOptions{Audiences: []string{"istio-ca"}})
	if err != nil {
		return err
	}
	if err := w.gatewayPod(ctx, namespace, address, pod); err != nil {
		return err
	}
	dir := filepath.Join(w.dir, "g"+address)
	for file, text := range map[string]string{"var/run/secrets/istio/root-cert.pem": w.roots, "var/run/secrets/tokens/istio-token": token} {
		file = filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			return err
		}
	}
	w.run(id, dir, []string{
		"JWT_POLICY=third-party-jwt", "PILOT_CERT_PROVIDER=istiod", "CA_ADDR=" + control + ":15012",
		"POD_NAME=" + name, "POD_NAMESPACE=" + namespace, "INSTANCE_IP=" + address, "SERVICE_ACCOUNT=" + name, "TRUST_DOMAIN=cluster.local",
		`PROXY_CONFIG={"discoveryAddress":"` + control + `:15012","binaryPath":"` + w.envoy + `","concurrency":1}`,
		"ISTIO_META_CLUSTER_ID=Kubernetes", "OUTRIGGER_BIND_ADDRESS=" + address, "ISTIO_METAJSON_LABELS=" + string(labels),
	}, "outrigger-agent", "proxy", "router", "--domain", namespace+".svc.cluster.local")
	return nil
}

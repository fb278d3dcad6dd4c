// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Admin is a client with all rights.
func (c *Cluster) Admin() kubernetes.Interface { return c.client }

// AdminConfig is the configuration for other clients of the administrator.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Config returns the configuration of a user with a client certificate. RBAC sees the groups in
// addition to system:authenticated. Requests are not limited.
func (c *Cluster) Config(user string, groups ...string) (*rest.Config, error) {
	p, err := c.ca.user(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: c.URL, QPS: -1, UserAgent: "kube-test/" + user,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA, CertData: p.cert, KeyData: p.key},
	}, nil
}

// TokenConfig returns the configuration of a client with a token.
func (c *Cluster) TokenConfig(token string) *rest.Config {
	return &rest.Config{
		Host: c.URL, QPS: -1, UserAgent: "kube-test/token", BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA},
	}
}

// Kubeconfig writes a kubeconfig for a user with a client certificate and returns its path. The
// file is removed with the cluster.
func (c *Cluster) Kubeconfig(user string, groups ...string) (string, error) {
	config, err := c.Config(user, groups...)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData})
}

// TokenKubeconfig writes a kubeconfig that names a file with a token, which clients reread when it
// changes.
func (c *Cluster) TokenKubeconfig(tokenFile string) (string, error) {
	return c.writeKubeconfig(clientcmdapi.AuthInfo{TokenFile: tokenFile})
}

func (c *Cluster) writeKubeconfig(user clientcmdapi.AuthInfo) (path string, err error) {
	file, err := os.CreateTemp(c.work.dir, "kubeconfig-")
	if err != nil {
		return "", fmt.Errorf("write a kubeconfig: %w", err)
	}
	if err := file.Close(); err != nil {
		return "", fmt.Errorf("write a kubeconfig: %w", err)
	}
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: c.URL, CertificateAuthorityData: c.CA}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": &user},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}, file.Name())
	if err != nil {
		return "", fmt.Errorf("write a kubeconfig: %w", err)
	}
	return file.Name(), nil
}

// TokenOptions describes the requested token of a service account.
type TokenOptions struct {
	Audiences []string      // empty: that of kube-apiserver, which is its issuer
	Lifetime  time.Duration // 0 means an hour; kube-apiserver grants at least 10 minutes
	Pod       *corev1.Pod   // the token is valid while this Pod exists; nil: not bound to a Pod
}

// Token returns a token of a service account from TokenRequest, as a kubelet requests it for a
// projected volume.
func (c *Cluster) Token(ctx context.Context, namespace, serviceAccount string, o TokenOptions) (string, error) {
	if o.Lifetime == 0 {
		o.Lifetime = time.Hour
	}
	seconds := int64(o.Lifetime / time.Second)
	spec := authenticationv1.TokenRequestSpec{Audiences: o.Audiences, ExpirationSeconds: &seconds}
	if o.Pod != nil {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: o.Pod.Name, UID: o.Pod.UID}
	}
	answer, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of %s/%s: %w", namespace, serviceAccount, err)
	}
	return answer.Status.Token, nil
}

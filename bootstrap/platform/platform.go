// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// The platforms, as CLOUD_PLATFORM names them.
const (
	AWS   = "aws"
	Azure = "azure"
	GCP   = "gcp"
	None  = "none"
)

// defaultTimeout is enough for a service on the same host, which answers
// within milliseconds.
const defaultTimeout = time.Second

// Config says how the platform is found.
type Config struct {
	// Platform is CLOUD_PLATFORM: aws, azure, gcp or none, in any case. Empty:
	// firmware and environment decide.
	Platform string
	Env      Env
	// IPv6 asks AWS and Google under their IPv6 addresses, for hosts that have
	// no other. Azure has none.
	IPv6 bool
	// Endpoints replace the addresses of the metadata services.
	Endpoints Endpoints
	// DMIDir is where the kernel shows what the firmware says. Empty:
	// /sys/class/dmi/id.
	DMIDir string
	// Timeout bounds all requests together. 0: one second.
	Timeout time.Duration
	// Logger gets the warnings. nil: nobody.
	Logger *slog.Logger
}

// Env is what the environment says of the platform.
type Env struct {
	// GCPMetadata is GCP_METADATA: project id, project number, cluster name and
	// cluster location with pipes between them. With it nothing is asked.
	GCPMetadata string
	// GCEMetadataHost is GCE_METADATA_HOST: host or host:port of Google's
	// metadata service. It says too that there is one.
	GCEMetadataHost string
	// GKEClusterURL is GKE_CLUSTER_URL. Empty: made of project, location and
	// cluster.
	GKEClusterURL string
	// GCPQuotaProject is GCP_QUOTA_PROJECT.
	GCPQuotaProject string
}

// Endpoints are base URLs such as http://169.254.169.254; empty ones have
// their well-known value.
type Endpoints struct {
	AWS, Azure, GCP string
}

// Result is what is known of the platform.
type Result struct {
	// Name is aws, azure, gcp or none.
	Name     string
	Locality Locality
	// Metadata is PLATFORM_METADATA; nil when nothing is known.
	Metadata map[string]string
}

// Locality is where a machine stands. What is not known is empty; no cloud
// here has a SubZone.
type Locality struct {
	Region, Zone, SubZone string
}

// Detect finds the platform. What its metadata service does not tell in time
// is missing in the result and a warning in the log. The error is that of ctx,
// the only reason to end early.
func Detect(ctx context.Context, cfg Config) (Result, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	static, err := parseGCPMetadata(cfg.Env.GCPMetadata)
	if err != nil {
		log.Warn("a setting of the cloud platform is left out", "err", err)
	}
	name, err := choose(cfg, static != nil)
	if err != nil {
		log.Warn("the cloud platform is detected instead", "err", err)
	}
	start := time.Now()
	asking, cancel := context.WithTimeout(ctx, cfg.timeout())
	defer cancel()
	result := Result{Name: name}
	switch name {
	case AWS:
		result, err = cfg.askAWS(asking)
	case Azure:
		result, err = cfg.askAzure(asking)
	case GCP:
		result, err = cfg.gcp(asking, static)
	default:
		return result, ctx.Err()
	}
	if ctx.Err() != nil {
		return Result{Name: name}, ctx.Err()
	}
	took := time.Since(start).Round(time.Millisecond)
	if err != nil {
		log.Warn("the cloud's metadata service did not answer every request: locality and platform metadata are incomplete. "+
			"CLOUD_PLATFORM=none turns the requests off; the label istio-locality sets the locality", "name", name, "duration", took, "err", err)
	} else {
		log.Info("cloud platform detected", "name", name, "duration", took)
	}
	return result, nil
}

// choose returns the name of the platform. It sends nothing.
func choose(cfg Config, static bool) (string, error) {
	var err error
	switch name := strings.ToLower(cfg.Platform); name {
	case AWS, Azure, GCP, None:
		return name, nil
	case "":
	default:
		err = fmt.Errorf("environment variable CLOUD_PLATFORM is %q, it must be aws, azure, gcp or none", cfg.Platform)
	}
	if static || cfg.Env.GCEMetadataHost != "" {
		return GCP, err
	}
	return readDMI(cfg.DMIDir).platform(), err
}

func (c Config) timeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return defaultTimeout
}

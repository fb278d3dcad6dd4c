// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	defaultDMIDir = "/sys/class/dmi/id"
	// maxDMI bounds what is read of a file; the kernel's are shorter.
	maxDMI = 256
	// azureTag is in every machine of Azure, and in no other that runs on
	// Microsoft's hypervisor or that Microsoft has built.
	azureTag  = "7783-7084-3265-9085-8269-3286-77"
	ec2Vendor = "Amazon EC2"
)

// dmi is what the firmware says of the machine. Files that only root may read
// are not needed.
type dmi struct {
	vendor, product, version, bios, chassis string
}

// readDMI reads the kernel's files; what cannot be read is empty.
func readDMI(dir string) dmi {
	if dir == "" {
		dir = defaultDMIDir
	}
	read := func(name string) string {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return "" // no firmware tables, or a sandbox without them
		}
		defer func() { _ = f.Close() }() // only read: nothing can be lost
		text, err := io.ReadAll(io.LimitReader(f, maxDMI))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(text))
	}
	return dmi{
		vendor: read("sys_vendor"), product: read("product_name"), version: read("product_version"),
		bios: read("bios_vendor"), chassis: read("chassis_asset_tag"),
	}
}

// platform tells whose machine it is.
func (d dmi) platform() string {
	const google = "Google" // also builds laptops: the vendor alone says little
	switch {
	case d.chassis == azureTag:
		return Azure
	case d.product == "Google Compute Engine", d.product == google, d.vendor == google && d.bios == google:
		return GCP
	case d.vendor == ec2Vendor, d.bios == ec2Vendor:
		return AWS
	case d.vendor == "Xen" && strings.Contains(strings.ToLower(d.version), "amazon"): // the older instance types
		return AWS
	default:
		return None
	}
}

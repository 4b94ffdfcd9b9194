package stackcheck_test

import (
	"testing"

	"holdfast/internal/stackcheck"
)

// The payment gateway is told the addresses once, weeks before the launch.
func TestNetwork_AChangeOfSizeGivesUpNoAddress(t *testing.T) {
	t.Parallel()
	templates := parse(t, sources(t))
	for name, chosen := range deployments() {
		d, err := deploy(templates, chosen)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		network := d.Stack("network")
		want := stackcheck.Reference("network", "NatAddressA", "") + "," + stackcheck.Reference("network", "NatAddressB", "") + "," + stackcheck.Reference("network", "NatAddressC", "")
		if got := network.Outputs["NatAddresses"]; got != want {
			t.Errorf("%s: output NatAddresses: got %s, want %s", name, got, want)
		}
		for _, id := range []string{"NatAddressA", "NatAddressB", "NatAddressC"} {
			if network.Resources[id].Type != "AWS::EC2::EIP" {
				t.Errorf("%s: %s: got type %q, want an address", name, id, network.Resources[id].Type)
			}
		}
	}
}

func TestNetwork_ZonesAreThoseThatAreChosen(t *testing.T) {
	t.Parallel()
	templates := parse(t, sources(t))
	for zones, want := range map[string][]string{
		"": {"a", "b", "c"},
		region + "b," + region + "c," + region + "d": {"b", "c", "d"},
	} {
		d, err := deploy(templates, map[string]string{"Size": "launch", "Zones": zones})
		if err != nil {
			t.Fatalf("%q: %v", zones, err)
		}
		for i, letter := range []string{"A", "B", "C"} {
			for _, kind := range []string{"Private", "Public"} {
				id := kind + "Subnet" + letter
				if got := d.Stack("network").Resources[id].Properties["AvailabilityZone"]; got != region+want[i] {
					t.Errorf("zones %q: %s: got %v, want %s", zones, id, got, region+want[i])
				}
			}
		}
	}
	for _, zones := range []string{region + "a," + region + "b", region, region + "a, " + region + "b, " + region + "c"} {
		if _, err := deploy(templates, map[string]string{"Zones": zones}); err == nil {
			t.Errorf("zones %q: got them taken, want three names of zones", zones)
		}
	}
}

//go:build !faults

package runtime

func faultPoint(string) {}

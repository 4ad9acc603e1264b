"""A script as one program: its trees and names, who calls whom, and where values come from."""

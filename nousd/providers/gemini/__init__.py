"""The dialect of Gemini's generateContent API."""
